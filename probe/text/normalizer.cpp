// See normalizer.h.
#include "probe/text/normalizer.h"

#include <optional>
#include <utility>

namespace blockscope {

namespace {

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

constexpr std::string_view kSupported =
    "one of NFC, NFD, NFKC, NFKD, Lowercase, Strip, Prepend, Replace, Sequence";

std::optional<NormalForm> parse_normal_form(std::string_view type) {
  if (type == "NFC") return NormalForm::kNfc;
  if (type == "NFD") return NormalForm::kNfd;
  if (type == "NFKC") return NormalForm::kNfkc;
  if (type == "NFKD") return NormalForm::kNfkd;
  return std::nullopt;
}

std::string strip(std::string_view text, bool left, bool right) {
  std::size_t begin = 0;
  std::size_t end = 0;  // after the last character that is not white space
  bool seen = false;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t start = i;
    if (is_white_space(next_code_point(text, i))) continue;
    if (!seen) begin = start;
    seen = true;
    end = i;
  }
  if (!seen) return left || right ? std::string() : std::string(text);
  if (!left) begin = 0;
  if (!right) end = text.size();
  return std::string(text.substr(begin, end - begin));
}

}  // namespace

std::string replace_matches(std::string_view text, const Regex& pattern,
                            const std::string& content) {
  std::string result;
  std::size_t previous = 0;
  pattern.for_each(text, [&](const Span& match) {
    result.append(text.substr(previous, match.begin - previous));
    result.append(content);
    previous = match.end;
  });
  result.append(text.substr(previous));
  return result;
}

Regex read_pattern(const JsonView& node) {
  if (const auto text = node.find("String")) {
    return Regex(Regex::escape(text->string()), text->place());
  }
  if (const auto pattern = node.find("Regex")) return Regex(pattern->string(), pattern->place());
  node.fail(R"({"String": ...} or {"Regex": ...})");
}

Normalizer Normalizer::from_json(const JsonView& node) {
  Normalizer normalizer;
  if (!node.raw().is_null()) normalizer.append(node, 0);
  return normalizer;
}

void Normalizer::append(const JsonView& node, int depth) {
  const JsonView type_view = node.at("type");
  const std::string type = type_view.string();
  if (const auto form = parse_normal_form(type)) {
    steps_.emplace_back(*form);
  } else if (type == "Lowercase") {
    steps_.emplace_back(Lowercase{});
  } else if (type == "Strip") {
    steps_.emplace_back(Strip{node.at("strip_left").boolean(), node.at("strip_right").boolean()});
  } else if (type == "Prepend") {
    steps_.emplace_back(Prepend{node.at("prepend").string()});
  } else if (type == "Replace") {
    steps_.emplace_back(Replace{read_pattern(node.at("pattern")), node.at("content").string()});
  } else if (type == "Sequence" && depth < kMaxComponentDepth) {
    for (const JsonView& step : node.at("normalizers").elements()) append(step, depth + 1);
  } else {
    type_view.fail(std::string(kSupported),
                   "this normalizer is not supported; give prompts as input_ids");
  }
}

std::string Normalizer::apply(std::string_view text) const {
  std::string current(text);
  for (const Step& step : steps_) {
    current = std::visit(
        Overloaded{
            [&](NormalForm form) { return normalize_unicode(current, form); },
            [&](const Lowercase&) { return lowercase(current); },
            [&](const Strip& s) { return strip(current, s.left, s.right); },
            [&](const Prepend& p) { return current.empty() ? current : p.prefix + current; },
            [&](const Replace& r) { return replace_matches(current, r.pattern, r.content); },
        },
        step);
  }
  return current;
}

}  // namespace blockscope
