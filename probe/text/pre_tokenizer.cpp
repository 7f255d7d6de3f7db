// See pre_tokenizer.h.
#include "probe/text/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "probe/text/normalizer.h"
#include "probe/text/unicode.h"

namespace blockscope {

namespace {

/// GPT-2's pattern, which ByteLevel applies when `use_regex` is set.
const Regex& gpt2_pattern() {
  static const Regex pattern(
      R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
      "ByteLevel pattern");
  return pattern;
}

}  // namespace

PreTokenizer PreTokenizer::from_json(const JsonView& json) {
  PreTokenizer pre_tokenizer;
  if (!json.raw().is_null()) pre_tokenizer.append(json, 0);
  return pre_tokenizer;
}

PreTokenizer::Behavior PreTokenizer::read_behavior(const JsonView& json) {
  const std::string name = json.string();
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "Contiguous") return Behavior::kContiguous;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  json.fail("Removed, Isolated, Contiguous, MergedWithPrevious or MergedWithNext");
}

void PreTokenizer::append(const JsonView& json, int depth) {
  const JsonView type_view = json.at("type");
  const std::string type = type_view.string();
  if (type == "Split") {
    steps_.emplace_back(Split{read_pattern(json.at("pattern")), read_behavior(json.at("behavior")),
                              json.at("invert").boolean()});
  } else if (type == "Digits") {
    steps_.emplace_back(Digits{json.at("individual_digits").boolean()});
  } else if (type == "ByteLevel") {
    steps_.emplace_back(
        ByteLevel{json.at("add_prefix_space").boolean(), json.boolean_or("use_regex", true)});
  } else if (type == "Sequence" && depth < kMaxComponentDepth) {
    for (const JsonView& step : json.at("pretokenizers").elements()) append(step, depth + 1);
  } else {
    type_view.fail("one of Split, ByteLevel, Digits, Sequence",
                   "this pre-tokenizer is not supported; give prompts as input_ids");
  }
}

std::vector<PreTokenizer::Piece> PreTokenizer::cut(std::string_view word, const Regex& pattern) {
  std::vector<Piece> pieces;
  std::size_t previous = 0;
  for (const Span& match : pattern.find_all(word)) {
    if (match.begin != previous) pieces.push_back({{previous, match.begin}, false});
    pieces.push_back({match, true});
    previous = match.end;
  }
  if (previous != word.size()) pieces.push_back({{previous, word.size()}, false});
  return pieces;
}

std::vector<PreTokenizer::Piece> PreTokenizer::cut_numeric(std::string_view word) {
  std::vector<Piece> pieces;
  std::size_t previous = 0;
  for (std::size_t i = 0; i < word.size();) {
    const std::size_t start = i;
    if (!is_numeric(next_code_point(word, i))) continue;
    if (previous < start) pieces.push_back({{previous, start}, false});
    pieces.push_back({{start, i}, true});
    previous = i;
  }
  if (previous < word.size()) pieces.push_back({{previous, word.size()}, false});
  return pieces;
}

/// Turns the pieces of the word at `offset` into words, as SplitDelimiterBehavior defines it.
void PreTokenizer::append_pieces(const std::vector<Piece>& pieces, Behavior behavior,
                                 std::size_t offset, std::vector<Span>& spans) {
  std::vector<Span> words;
  bool previous_match = false;
  switch (behavior) {
    case Behavior::kRemoved:
      for (const Piece& piece : pieces) {
        if (!piece.is_match) words.push_back(piece.span);
      }
      break;
    case Behavior::kIsolated:
      for (const Piece& piece : pieces) words.push_back(piece.span);
      break;
    case Behavior::kContiguous:
      for (const Piece& piece : pieces) {
        if (piece.is_match == previous_match && !words.empty()) {
          words.back().end = piece.span.end;
        } else {
          words.push_back(piece.span);
        }
        previous_match = piece.is_match;
      }
      break;
    case Behavior::kMergedWithPrevious:
      for (const Piece& piece : pieces) {
        if (piece.is_match && !previous_match && !words.empty()) {
          words.back().end = piece.span.end;
        } else {
          words.push_back(piece.span);
        }
        previous_match = piece.is_match;
      }
      break;
    case Behavior::kMergedWithNext:
      for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
        if (piece->is_match && !previous_match && !words.empty()) {
          words.back().begin = piece->span.begin;
        } else {
          words.push_back(piece->span);
        }
        previous_match = piece->is_match;
      }
      std::reverse(words.begin(), words.end());
      break;
  }
  for (const Span& word : words) {
    if (word.begin < word.end) spans.push_back({offset + word.begin, offset + word.end});
  }
}

void PreTokenizer::run(const Split& step, Words& words) {
  std::vector<Span> spans;
  for (const Span& word : words.spans) {
    const std::string_view text =
        std::string_view(words.text).substr(word.begin, word.end - word.begin);
    std::vector<Piece> pieces = cut(text, step.pattern);
    if (step.invert) {
      for (Piece& piece : pieces) piece.is_match = !piece.is_match;
    }
    append_pieces(pieces, step.behavior, word.begin, spans);
  }
  words.spans = std::move(spans);
}

void PreTokenizer::run(const Digits& step, Words& words) {
  std::vector<Span> spans;
  for (const Span& word : words.spans) {
    const std::string_view text =
        std::string_view(words.text).substr(word.begin, word.end - word.begin);
    append_pieces(cut_numeric(text), step.individual ? Behavior::kIsolated : Behavior::kContiguous,
                  word.begin, spans);
  }
  words.spans = std::move(spans);
}

void PreTokenizer::run(const ByteLevel& step, Words& words) {
  if (step.add_prefix_space) {
    Words prefixed;
    for (const Span& word : words.spans) {
      const std::size_t begin = prefixed.text.size();
      if (words.text[word.begin] != ' ') prefixed.text.push_back(' ');
      prefixed.text.append(words.text, word.begin, word.end - word.begin);
      prefixed.spans.push_back({begin, prefixed.text.size()});
    }
    words = std::move(prefixed);
  }
  if (step.use_regex) {
    std::vector<Span> spans;
    for (const Span& word : words.spans) {
      const std::string_view text =
          std::string_view(words.text).substr(word.begin, word.end - word.begin);
      append_pieces(cut(text, gpt2_pattern()), Behavior::kIsolated, word.begin, spans);
    }
    words.spans = std::move(spans);
  }
  Words mapped;
  mapped.text.reserve(words.text.size() + words.text.size() / 4);
  mapped.spans.reserve(words.spans.size());
  for (const Span& word : words.spans) {
    const std::size_t begin = mapped.text.size();
    for (std::size_t i = word.begin; i < word.end; ++i) {
      append_byte_alphabet(mapped.text, static_cast<unsigned char>(words.text[i]));
    }
    mapped.spans.push_back({begin, mapped.text.size()});
  }
  words = std::move(mapped);
}

Words PreTokenizer::apply(std::string text) const {
  Words words;
  words.text = std::move(text);
  if (!words.text.empty()) words.spans.push_back({0, words.text.size()});
  for (const Step& step : steps_) {
    std::visit([&](const auto& typed) { run(typed, words); }, step);
  }
  return words;
}

}  // namespace blockscope
