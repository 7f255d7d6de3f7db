// See token_decoder.h.
#include "probe/text/token_decoder.h"

#include <optional>
#include <utility>

#include "probe/text/normalizer.h"
#include "probe/text/unicode.h"
#include "probe/text/vocabulary.h"

namespace blockscope {
namespace {

constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

/// The bytes of a token in the byte alphabet. If a character is not in it (some added tokens), the
/// token stays as it is.
std::string alphabet_to_bytes(std::string_view token) {
  std::string bytes;
  for (std::size_t i = 0; i < token.size();) {
    const std::optional<unsigned char> byte = byte_of_alphabet(next_code_point(token, i));
    if (!byte) return std::string(token);
    bytes.push_back(static_cast<char>(*byte));
  }
  return bytes;
}

std::string joined(const std::vector<std::string>& tokens, std::string_view between) {
  std::string text;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) text += between;
    text += tokens[i];
  }
  return text;
}

std::string stripped(std::string_view text, std::string_view content, std::size_t start,
                     std::size_t stop) {
  for (std::size_t i = 0; i < start && text.starts_with(content); ++i) {
    text.remove_prefix(content.size());
  }
  for (std::size_t i = 0; i < stop && text.ends_with(content); ++i) {
    text.remove_suffix(content.size());
  }
  return std::string(text);
}

std::string with(std::string_view text, std::string_view old, std::string_view content) {
  std::string result;
  for (std::size_t i = 0; i < text.size();) {
    if (text.substr(i).starts_with(old)) {
      result += content;
      i += old.size();
    } else {
      result += text[i++];
    }
  }
  return result;
}

}  // namespace

TokenDecoder TokenDecoder::from_json(const JsonView& node) {
  TokenDecoder decoder;
  if (node.raw().is_null()) return decoder;
  decoder.joins_with_space_ = false;
  decoder.append(node, 0);
  return decoder;
}

void TokenDecoder::append(const JsonView& node, int depth) {
  const JsonView type_view = node.at("type");
  const std::string type = type_view.string();
  if (type == "ByteLevel") {
    steps_.emplace_back(ByteLevel{});
  } else if (type == "ByteFallback") {
    steps_.emplace_back(ByteFallback{});
  } else if (type == "Fuse") {
    steps_.emplace_back(Fuse{});
  } else if (type == "Replace") {
    steps_.emplace_back(Replace{read_pattern(node.at("pattern")), node.at("content").string()});
  } else if (type == "Strip") {
    constexpr std::int64_t kMost = 1 << 20;
    Strip strip{node.at("content").string(),
                static_cast<std::size_t>(node.at("start").integer(0, kMost)),
                static_cast<std::size_t>(node.at("stop").integer(0, kMost))};
    if (to_utf32(strip.content).size() != 1) node.at("content").fail("one character");
    steps_.emplace_back(std::move(strip));
  } else if (type == "Metaspace") {
    steps_.emplace_back(read_metaspace(node));
  } else if (type == "Sequence" && depth < kMaxComponentDepth) {
    for (const JsonView& step : node.at("decoders").elements()) append(step, depth + 1);
  } else {
    type_view.fail("one of ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip, Sequence",
                   "this decoder is not supported");
  }
}

TokenDecoder::Tokens TokenDecoder::run(const ByteLevel&, Tokens tokens) {
  std::string bytes;
  for (const std::string& token : tokens) bytes += alphabet_to_bytes(token);
  return {replace_invalid_utf8(bytes)};
}

/// Neighbouring byte tokens are characters, or if they are not UTF-8, one U+FFFD each.
TokenDecoder::Tokens TokenDecoder::run(const ByteFallback&, Tokens tokens) {
  Tokens result;
  std::string bytes;
  const auto end_run = [&] {
    if (bytes.empty()) return;
    if (!find_invalid_utf8(bytes)) {
      result.push_back(bytes);
    } else {
      result.insert(result.end(), bytes.size(), std::string(kReplacementCharacter));
    }
    bytes.clear();
  };
  for (std::string& token : tokens) {
    if (const auto byte = byte_of_fallback(token)) {
      bytes.push_back(static_cast<char>(*byte));
    } else {
      end_run();
      result.push_back(std::move(token));
    }
  }
  end_run();
  return result;
}

TokenDecoder::Tokens TokenDecoder::run(const Fuse&, Tokens tokens) { return {joined(tokens, "")}; }

TokenDecoder::Tokens TokenDecoder::run(const Replace& step, Tokens tokens) {
  for (std::string& token : tokens) token = replace_matches(token, step.pattern, step.content);
  return tokens;
}

TokenDecoder::Tokens TokenDecoder::run(const Strip& step, Tokens tokens) {
  for (std::string& token : tokens) token = stripped(token, step.content, step.start, step.stop);
  return tokens;
}

TokenDecoder::Tokens TokenDecoder::run(const Metaspace& step, Tokens tokens) {
  bool first = step.prepend != Metaspace::Prepend::kNever;
  for (std::string& token : tokens) {
    token = with(token, step.replacement, first ? "" : " ");
    first = false;
  }
  return tokens;
}

std::string TokenDecoder::text(std::vector<std::string> tokens) const {
  for (const Step& step : steps_) {
    tokens = std::visit([&](const auto& typed) { return run(typed, std::move(tokens)); }, step);
  }
  return joined(tokens, joins_with_space_ ? " " : "");
}

std::string TokenDecoder::bytes(std::string_view token) const {
  std::string bytes(token);
  bool fused = false;  // a later step sees the whole text
  for (const Step& step : steps_) {
    if (std::holds_alternative<ByteLevel>(step)) return alphabet_to_bytes(bytes);
    if (const auto* metaspace = std::get_if<Metaspace>(&step)) {
      bytes = with(bytes, metaspace->replacement, " ");
    } else if (const auto* replace = std::get_if<Replace>(&step)) {
      bytes = replace_matches(bytes, replace->pattern, replace->content);
    } else if (const auto* strip = std::get_if<Strip>(&step); strip != nullptr && !fused) {
      bytes = stripped(bytes, strip->content, strip->start, strip->stop);
    } else if (std::holds_alternative<ByteFallback>(step)) {
      if (const auto byte = byte_of_fallback(bytes)) return {static_cast<char>(*byte)};
    }
    fused = fused || std::holds_alternative<Fuse>(step);
  }
  return bytes;
}

}  // namespace blockscope
