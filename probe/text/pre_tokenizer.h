// The `pre_tokenizer` of a tokenizer.json: splits normalised text into the words that BPE gets one
// by one. Supported: Split, ByteLevel, Digits, Sequence; any other type is refused by name.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>
#include <variant>
#include <vector>

#include "probe/text/regex.h"
#include "probe/text/text_json.h"

namespace blockscope {

/// Takes words one by one; a word lives until the call returns.
using WordSink = std::function<void(std::string_view)>;

class PreTokenizer {
 public:
  /// No pre-tokenizer: the whole text is one word.
  PreTokenizer() = default;

  /// `json` is the value of the key "pre_tokenizer", null included. Throws CheckpointError.
  static PreTokenizer from_json(const JsonView& node);

  /// Hands the words of `text` to `sink`, from left to right; no word is empty. `text` must be
  /// well-formed UTF-8. Needs memory for the longest word only.
  void apply(std::string_view text, const WordSink& sink) const;

  /// Whether the words contain every byte of the text, spelled in the byte alphabet.
  bool spells_every_byte() const;

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
  using Step = std::variant<Split, Digits, ByteLevel>;

  class Merger;

  static Behavior read_behavior(const JsonView& node);
  static void run(const Split& step, std::string_view word, const WordSink& sink);
  static void run(const Digits& step, std::string_view word, const WordSink& sink);
  static void run(const ByteLevel& step, std::string_view word, const WordSink& sink);
  static void split(std::string_view word, const Regex& pattern, Behavior behavior, bool invert,
                    const WordSink& sink);
  void run_from(std::size_t step, std::string_view word, const WordSink& sink) const;
  void append(const JsonView& node, int depth);

  std::vector<Step> steps_;
};

}  // namespace blockscope
