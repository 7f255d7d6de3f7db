// Checks that a trace's columns are valid: every value that is an index, a count, a position, a
// token or a step, and every range of CSR elements. Every reader of a trace runs this check first,
// so no command meets a value outside its range. Internal to decode_record.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "decode_record/read/stored_trace.h"

namespace blockscope {

/// Reads columns once, from the first row to the last, one slab at a time. Throws CorruptTrace that
/// names the file, the dataset, the row, what was expected and what was found.
class TraceCheck {
 public:
  /// `trace` must outlive it. Sequences that are true in `cut` have no text, like those without an
  /// end.
  explicit TraceCheck(const StoredTrace& trace, std::vector<bool> cut = {})
      : trace_(&trace), cut_(std::move(cut)) {}

  /// Checks the vocabulary.
  void pieces() const;
  /// Goes on until the first `count` sequences are checked. Those that have not ended have no text.
  void sequences(std::int64_t count);
  /// Goes on until the first `count` rows are checked. Their sequences must be checked before.
  void rows(std::int64_t count);
  /// One more than the largest position that a token of the checked sequences can have.
  std::int64_t positions() const { return positions_; }

 private:
  /// The state of a sequence after the rows that were checked.
  struct Sequence {
    std::int64_t prompt_length = 0;
    std::int64_t length = 0;  ///< of its frame
    std::int64_t last_row = -1;
    std::int64_t rows = 0;
    std::int64_t keyframe = -1;
    std::int64_t block = -1;                      ///< of the last denoising row
    std::int64_t step = 0;                        ///< of that row
    std::int64_t decided = -1;                    ///< largest step that decided a token
    std::map<std::int64_t, std::int64_t> tokens;  ///< not masks, by position (has_revocations)
  };
  struct Columns;   // one slab of /steps and of the ends
  struct Elements;  // the CSR columns
  [[noreturn]] void refuse(Field field, const std::string& where, const std::string& expected,
                           const std::string& got) const;
  void check(Field field, const char* unit, std::int64_t at, std::int64_t value, std::int64_t least,
             std::int64_t most) const;
  std::vector<std::int64_t> column(Field field, std::int64_t first, std::int64_t count) const;
  void check_prompts(std::int64_t first, std::int64_t end) const;
  void check_texts(std::int64_t first, std::int64_t count) const;
  std::int64_t end_of(Field end_field, Field elements, std::int64_t row) const;
  std::int64_t slab_rows() const;
  void limit_elements(std::int64_t count, Elements& elements) const;
  Columns read_slab(std::int64_t count) const;
  void read_ends(std::int64_t count, Columns& columns) const;
  void check_valid(std::int64_t count) const;
  void read_keyframes(std::int64_t count, Columns& columns, Elements& elements) const;
  void check_row(const Columns& columns, std::size_t i, Elements& elements);
  void check_step(const Columns& columns, std::size_t i, Sequence& sequence) const;
  void check_keyframe(const Columns& columns, std::size_t i, Sequence& sequence,
                      Elements& elements);
  void check_delta(const Columns& columns, std::size_t i, Sequence& sequence, Elements& elements);
  void check_prefix(const Columns& columns, std::size_t i, const Sequence& sequence,
                    Elements& elements) const;
  void check_revocations(const Columns& columns, std::size_t i, Sequence& sequence,
                         Elements& elements);
  void follow_moves(const Columns& columns, std::size_t i, Sequence& sequence,
                    Elements& elements) const;
  void check_cache(const Columns& columns, std::size_t i, const Sequence& sequence,
                   Elements& elements) const;
  void check_tokens(Field field, std::int64_t row, std::span<const std::int32_t> tokens) const;
  void check_decided(Field field, std::int64_t row, std::span<const std::int32_t> steps,
                     std::span<const std::int32_t> tokens, std::span<const float> confidence,
                     std::int64_t most) const;
  void check_confidence(Field field, std::int64_t row, std::span<const float> values) const;
  void check_all(Field field, std::int64_t row, std::span<const std::int32_t> values,
                 std::int64_t least, std::int64_t most) const;
  void check_distinct(Field field, std::int64_t row, std::span<const std::int32_t> values);

  const StoredTrace* trace_;
  std::vector<bool> cut_;
  std::vector<Sequence> sequences_;
  std::int64_t rows_ = 0;  // checked
  std::int64_t keyframes_ = 0;
  std::int64_t positions_ = 0;
  std::vector<std::int64_t> seen_;  // by position: number of the last check_distinct() that saw it
  std::int64_t looks_ = 0;
};

}  // namespace blockscope
