// The `pre_tokenizer` of a tokenizer.json: splits normalised text into the words that BPE gets one
// by one. Supported: Split, ByteLevel, Digits, Metaspace, Sequence; any other type is refused by
// name.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "probe/text/regex.h"
#include "probe/text/text_json.h"

namespace blockscope {

/// Takes words one by one; a word lives until the call returns.
using WordSink = std::function<void(std::string_view)>;

/// SentencePiece's spelling of spaces, as a pre-tokenizer and as a decoder.
struct Metaspace {
  enum class Prepend { kAlways, kFirst, kNever };
  std::string replacement;  // one character, in the place of each space
  Prepend prepend = Prepend::kAlways;
  bool split = true;  // at each space
};
Metaspace read_metaspace(const JsonView& node);

class PreTokenizer {
 public:
  /// No pre-tokenizer: the whole text is one word.
  PreTokenizer() = default;

  /// `json` is the value of the key "pre_tokenizer", null included. Throws CheckpointError.
  static PreTokenizer from_json(const JsonView& node);

  /// Hands the words of `text` to `sink`, from left to right; no word is empty. `text` must be
  /// well-formed UTF-8. Needs memory for the longest word only. `at_start`: nothing is before it.
  void apply(std::string_view text, bool at_start, const WordSink& sink) const;

  bool spells_bytes() const;        // the words are in the byte alphabet
  bool removes_text() const;        // some text may be in no word
  bool asks_for_the_start() const;  // at_start makes a difference

 private:
  enum class Behavior { kRemoved, kIsolated, kContiguous, kMergedWithPrevious, kMergedWithNext };
  struct Split {
    Regex pattern;
    Behavior behavior;
    bool invert;
  };
  struct Digits {
    bool individual;
  };
  struct ByteLevel {
    bool add_prefix_space;
    bool use_regex;
  };
  using Step = std::variant<Split, Digits, ByteLevel, Metaspace>;

  class Merger;

  static Behavior read_behavior(const JsonView& node);
  static void run(const Split& step, std::string_view word, const WordSink& sink);
  static void run(const Digits& step, std::string_view word, const WordSink& sink);
  static void run(const ByteLevel& step, std::string_view word, const WordSink& sink);
  static void run(const Metaspace& step, std::string_view word, bool at_start,
                  const WordSink& sink);
  static void split(std::string_view word, const Regex& pattern, Behavior behavior, bool invert,
                    const WordSink& sink);
  void run_from(std::size_t step, std::string_view word, bool at_start, const WordSink& sink) const;
  void append(const JsonView& node, int depth);

  std::vector<Step> steps_;
};

}  // namespace blockscope
