// End-of-text tokens, for everything that shows a text: a run of them fills the rest of an answer,
// and is shown as one mark.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "decode_record/read/trace_reader.h"

namespace blockscope {

/// The tokens that ended a sequence of the run (`stop_ids` of /run/json); none for --no-stop.
std::set<std::int64_t> stop_ids(const TraceReader& trace);

/// The end-of-text tokens of a trace: its stop tokens, and the pieces with a usual name of such a
/// token ("<|endoftext|>", "</s>"). A run with --no-stop has only the second kind.
class EndOfText {
 public:
  /// Reads the vocabulary once: milliseconds for 150,000 pieces.
  explicit EndOfText(const TraceReader& trace);
  explicit EndOfText(std::set<std::int64_t> tokens) : tokens_(std::move(tokens)) {}
  bool contains(std::int64_t token) const { return tokens_.contains(token); }

 private:
  std::set<std::int64_t> tokens_;
};

/// Number of end-of-text tokens at the end of `tokens`.
std::size_t trailing_end_of_text(std::span<const std::int64_t> tokens, const EndOfText& ends);

/// For each token: n if it is the first one of a run of n >= 2 end-of-text tokens, -1 if it is a
/// later one of a run, and 0 otherwise.
std::vector<std::int32_t> end_of_text_runs(std::span<const std::int64_t> tokens,
                                           const EndOfText& ends);

/// What a text shows for a token: the mark for the first one of a run, a dot for a later one, and
/// `text` for others. `run`: from end_of_text_runs().
std::string end_of_text_label(std::int32_t run, const std::string& text);

/// The mark for a run of `count` tokens, such as "⟨end of text ×17⟩".
std::string end_of_text_mark(std::size_t count);

}  // namespace blockscope
