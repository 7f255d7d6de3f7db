// The `pre_tokenizer` of a tokenizer.json: cuts normalised text into the words that BPE sees one by
// one. Supported: Split, ByteLevel, Digits, Sequence; any other type is refused by name.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "probe/text/regex.h"
#include "probe/text/text_json.h"

namespace blockscope {

/// Words as ranges of one text; none is empty. A step may replace the text (ByteLevel does).
struct Words {
  std::string text;
  std::vector<Span> spans;
};

class PreTokenizer {
 public:
  /// No pre-tokenizer: the whole text is one word.
  PreTokenizer() = default;

  /// `json` is the value of the key "pre_tokenizer", null included. Throws CheckpointError.
  static PreTokenizer from_json(const JsonView& json);

  /// `text` must be well-formed UTF-8.
  Words apply(std::string text) const;

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

  /// A stretch of one word, matched by the step's pattern or between two matches.
  struct Piece {
    Span span;
    bool is_match;
  };

  static Behavior read_behavior(const JsonView& json);
  static std::vector<Piece> cut(std::string_view word, const Regex& pattern);
  static std::vector<Piece> cut_numeric(std::string_view word);
  static void append_pieces(const std::vector<Piece>& pieces, Behavior behavior, std::size_t offset,
                            std::vector<Span>& spans);
  static void run(const Split& step, Words& words);
  static void run(const Digits& step, Words& words);
  static void run(const ByteLevel& step, Words& words);
  void append(const JsonView& json, int depth);

  std::vector<Step> steps_;
};

}  // namespace blockscope
