// See pre_tokenizer.h.
#include "probe/text/pre_tokenizer.h"

#include <algorithm>
#include <optional>
#include <string>
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

Metaspace read_metaspace(const JsonView& node) {
  using Prepend = Metaspace::Prepend;
  Metaspace metaspace;
  metaspace.replacement = node.at("replacement").string();
  if (to_utf32(metaspace.replacement).size() != 1) node.at("replacement").fail("one character");
  metaspace.split = node.boolean_or("split", true);
  if (const auto scheme = node.find("prepend_scheme")) {
    const std::string name = scheme->string();
    if (name != "always" && name != "first" && name != "never") {
      scheme->fail("always, first or never");
    }
    metaspace.prepend = name == "always"  ? Prepend::kAlways
                        : name == "first" ? Prepend::kFirst
                                          : Prepend::kNever;
  }
  // The older key, which the package still reads.
  if (const auto prefix = node.find("add_prefix_space"); prefix && !prefix->boolean()) {
    if (node.find("prepend_scheme") && metaspace.prepend != Prepend::kNever) {
      prefix->fail("true, as prepend_scheme says");
    }
    metaspace.prepend = Prepend::kNever;
  }
  return metaspace;
}

PreTokenizer PreTokenizer::from_json(const JsonView& node) {
  PreTokenizer pre_tokenizer;
  if (!node.raw().is_null()) pre_tokenizer.append(node, 0);
  return pre_tokenizer;
}

PreTokenizer::Behavior PreTokenizer::read_behavior(const JsonView& node) {
  const std::string name = node.string();
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "Contiguous") return Behavior::kContiguous;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  node.fail("Removed, Isolated, Contiguous, MergedWithPrevious or MergedWithNext");
}

void PreTokenizer::append(const JsonView& node, int depth) {
  const JsonView type_view = node.at("type");
  const std::string type = type_view.string();
  if (type == "Split") {
    steps_.emplace_back(Split{read_pattern(node.at("pattern")), read_behavior(node.at("behavior")),
                              node.at("invert").boolean()});
  } else if (type == "Digits") {
    steps_.emplace_back(Digits{node.at("individual_digits").boolean()});
  } else if (type == "ByteLevel") {
    steps_.emplace_back(
        ByteLevel{node.at("add_prefix_space").boolean(), node.boolean_or("use_regex", true)});
  } else if (type == "Metaspace") {
    steps_.emplace_back(read_metaspace(node));
    if (asks_for_the_start() && steps_.size() > 1) {
      node.at("prepend_scheme").fail("always or never in a step that is not the first");
    }
  } else if (type == "Sequence" && depth < kMaxComponentDepth) {
    for (const JsonView& step : node.at("pretokenizers").elements()) append(step, depth + 1);
  } else {
    type_view.fail("one of Split, ByteLevel, Digits, Metaspace, Sequence",
                   "this pre-tokenizer is not supported; give prompts as input_ids");
  }
}

/// Joins pieces to words, as SplitDelimiterBehavior defines it. A piece is a match of the pattern,
/// or the text between two matches.
class PreTokenizer::Merger {
 public:
  Merger(std::string_view text, Behavior behavior, const WordSink& sink)
      : text_(text), behavior_(behavior), sink_(sink) {}

  void add(const Span& piece, bool is_match) {
    switch (behavior_) {
      case Behavior::kRemoved:
        if (!is_match) emit(piece);
        return;
      case Behavior::kIsolated:
        return emit(piece);
      case Behavior::kContiguous:
        return join(piece, is_match, is_match == held_match_);
      case Behavior::kMergedWithPrevious:
        return join(piece, is_match, is_match && !held_match_);
      case Behavior::kMergedWithNext:
        return join(piece, is_match, !is_match && held_match_);
    }
  }
  void end() {
    if (holds_) emit(held_);
    holds_ = false;
  }

 private:
  /// The piece belongs to the word before it, or begins a new one.
  void join(const Span& piece, bool is_match, bool belongs) {
    if (holds_ && belongs) {
      held_.end = piece.end;
    } else {
      end();
      held_ = piece;
      holds_ = true;
    }
    held_match_ = is_match;
  }
  void emit(const Span& word) const {
    if (word.begin < word.end) sink_(text_.substr(word.begin, word.end - word.begin));
  }

  std::string_view text_;
  Behavior behavior_;
  const WordSink& sink_;
  Span held_{};              // a word that may go on
  bool holds_ = false;       // whether there is one
  bool held_match_ = false;  // its last piece is a match
};

void PreTokenizer::split(std::string_view word, const Regex& pattern, Behavior behavior,
                         bool invert, const WordSink& sink) {
  Merger merger(word, behavior, sink);
  std::size_t previous = 0;
  pattern.for_each(word, [&](const Span& match) {
    if (match.begin != previous) merger.add({previous, match.begin}, invert);
    merger.add(match, !invert);
    previous = match.end;
  });
  if (previous != word.size()) merger.add({previous, word.size()}, invert);
  merger.end();
}

void PreTokenizer::run(const Split& step, std::string_view word, const WordSink& sink) {
  split(word, step.pattern, step.behavior, step.invert, sink);
}

void PreTokenizer::run(const Digits& step, std::string_view word, const WordSink& sink) {
  Merger merger(word, step.individual ? Behavior::kIsolated : Behavior::kContiguous, sink);
  std::size_t previous = 0;
  for (std::size_t i = 0; i < word.size();) {
    const std::size_t start = i;
    if (!is_numeric(next_code_point(word, i))) continue;
    if (previous < start) merger.add({previous, start}, false);
    merger.add({start, i}, true);
    previous = i;
  }
  if (previous < word.size()) merger.add({previous, word.size()}, false);
  merger.end();
}

void PreTokenizer::run(const ByteLevel& step, std::string_view word, const WordSink& sink) {
  std::string prefixed;
  if (step.add_prefix_space && word.front() != ' ') {
    prefixed.append(" ").append(word);
    word = prefixed;
  }
  std::string mapped;
  const WordSink map = [&](std::string_view part) {
    mapped.clear();
    for (const char byte : part) append_byte_alphabet(mapped, static_cast<unsigned char>(byte));
    sink(mapped);
  };
  if (!step.use_regex) return map(word);
  split(word, gpt2_pattern(), Behavior::kIsolated, false, map);
}

void PreTokenizer::run(const Metaspace& step, std::string_view word, bool at_start,
                       const WordSink& sink) {
  std::string spelled;
  for (const char byte : word) {
    if (byte == ' ') {
      spelled += step.replacement;
    } else {
      spelled += byte;
    }
  }
  const bool prepends = step.prepend == Metaspace::Prepend::kAlways ||
                        (step.prepend == Metaspace::Prepend::kFirst && at_start);
  if (prepends && !spelled.starts_with(step.replacement)) spelled.insert(0, step.replacement);
  if (!step.split) return sink(spelled);
  for (std::size_t begin = 0; begin < spelled.size();) {  // a word starts at each replacement
    const std::size_t next = std::min(spelled.find(step.replacement, begin + 1), spelled.size());
    sink(std::string_view(spelled).substr(begin, next - begin));
    begin = next;
  }
}

void PreTokenizer::run_from(std::size_t step, std::string_view word, bool at_start,
                            const WordSink& sink) const {
  if (step == steps_.size()) return sink(word);
  const WordSink next = [&](std::string_view part) { run_from(step + 1, part, false, sink); };
  if (const auto* metaspace = std::get_if<Metaspace>(&steps_[step])) {
    return run(*metaspace, word, at_start, next);
  }
  std::visit(
      [&](const auto& typed) {
        if constexpr (!std::is_same_v<decltype(typed), const Metaspace&>) run(typed, word, next);
      },
      steps_[step]);
}

bool PreTokenizer::spells_bytes() const {
  return std::ranges::any_of(
      steps_, [](const Step& step) { return std::holds_alternative<ByteLevel>(step); });
}

bool PreTokenizer::removes_text() const {
  return std::ranges::any_of(steps_, [](const Step& step) {
    const auto* split = std::get_if<Split>(&step);
    return split != nullptr && split->behavior == Behavior::kRemoved;
  });
}

bool PreTokenizer::asks_for_the_start() const {
  return std::ranges::any_of(steps_, [](const Step& step) {
    const auto* metaspace = std::get_if<Metaspace>(&step);
    return metaspace != nullptr && metaspace->prepend == Metaspace::Prepend::kFirst;
  });
}

void PreTokenizer::apply(std::string_view text, bool at_start, const WordSink& sink) const {
  if (!text.empty()) run_from(0, text, at_start, sink);
}

}  // namespace blockscope
