// See whole_rows.h. Each dataset limits the rows or the sequences. Ranges of elements limit their
// rows.
#include "decode_record/read/whole_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace blockscope {
namespace {

constexpr std::int64_t kScanRows = 65536;

class Search {
 public:
  explicit Search(const StoredTrace& trace) : trace_(trace) {}

  WholeRows run() {
    result_.committed_rows = trace_.committed().rows;
    result_.committed_sequences = trace_.committed().sequences;
    result_.rows = result_.committed_rows;
    result_.sequences = result_.committed_sequences;
    limit_by_own_columns();
    limit_sequences_by_texts();
    for (const RangeSpec& range : kRowRanges) {
      if (trace_.has(range.end)) limit_by_elements(range);
    }
    limit_by_keyframes();
    limit_by_owners();
    mark_cut_sequences();
    return std::move(result_);
  }

 private:
  void lose_rows(std::int64_t rows, const std::string& why) {
    if (rows >= result_.rows) return;
    result_.rows = rows;
    result_.why = why;
  }
  void lose_sequences(std::int64_t sequences, const std::string& why) {
    if (sequences >= result_.sequences) return;
    result_.sequences = sequences;
    if (result_.why.empty()) result_.why = why;
  }

  void limit_by_own_columns() {
    for (const DatasetSpec& spec : kDatasets) {
      if (!spec.extendible() || !trace_.has(spec.field)) continue;
      std::string why;
      if (spec.per_row()) {
        const std::int64_t whole = trace_.whole_rows(spec.field, result_.rows, &why);
        lose_rows(whole, why);
      } else if (spec.axes[0] == Axis::sequence) {
        const std::int64_t whole = trace_.whole_rows(spec.field, result_.sequences, &why);
        lose_sequences(whole, why);
      }
    }
  }

  std::vector<std::int64_t> longs(Field field, std::int64_t first, std::int64_t count) const {
    return trace_.column<std::int64_t>(field, first, count);
  }
  std::vector<std::int32_t> ints(Field field, std::int64_t first, std::int64_t count) const {
    return trace_.column<std::int32_t>(field, first, count);
  }

  /// Prompts, names, answers and metrics are written before the first row of their sequence.
  void limit_sequences_by_texts() {
    result_.cut.assign(static_cast<std::size_t>(result_.sequences), false);
    constexpr std::pair<Field, Field> kParts[] = {
        {Field::sequence_prompt_start, Field::sequence_prompt_length},
        {Field::sequence_name_start, Field::sequence_name_length},
        {Field::sequence_answer_start, Field::sequence_answer_length},
        {Field::sequence_metric_start, Field::sequence_metric_length},
        {Field::sequence_text_start, Field::sequence_text_length}};
    const std::int64_t all = result_.sequences;
    const std::vector<std::uint8_t>& reasons = trace_.committed().finish_reasons;
    for (const auto& [start_field, length_field] : kParts) {
      const bool prompt = start_field == Field::sequence_prompt_start;
      const bool text = start_field == Field::sequence_text_start;
      const Field elements = prompt ? Field::sequence_prompt_token : Field::sequence_bytes;
      const auto start = longs(start_field, 0, all);
      const auto length = ints(length_field, 0, all);
      std::string why;
      std::int64_t there = trace_.whole_rows(elements, trace_.extent(elements), &why);
      if (prompt && trace_.has(Field::sequence_prompt_region)) {
        there = std::min(there, trace_.whole_rows(Field::sequence_prompt_region, there, &why));
      }
      for (std::size_t i = 0; i < start.size(); ++i) {
        if (text && reasons[i] == 0) continue;  // has no text yet
        if (start[i] + length[i] <= there) continue;
        if (!text) {
          lose_sequences(static_cast<std::int64_t>(i), why);
          break;
        }
        result_.cut[i] = true;
        if (result_.why.empty()) result_.why = why;
      }
    }
  }

  void limit_by_elements(const RangeSpec& range) {
    if (result_.rows == 0) return;
    const std::vector<std::int64_t> last = longs(range.end, result_.rows - 1, 1);
    const auto width = static_cast<std::int64_t>(last.size());  // ends of a row
    const std::int64_t total = last.back();
    const std::int64_t part = std::max<std::int64_t>(kScanRows / width, 1);
    for (const DatasetSpec& spec : kDatasets) {
      if (!spec.extendible() || spec.axes[0] != range.axis || !trace_.has(spec.field)) continue;
      std::string why;
      const std::int64_t there =
          trace_.whole_rows(spec.field, std::max<std::int64_t>(total, 0), &why);
      if (there >= total) continue;
      for (std::int64_t first = 0; first < result_.rows; first += part) {
        const auto ends = longs(range.end, first, std::min(part, result_.rows - first));
        const auto beyond =
            std::ranges::find_if(ends, [there](std::int64_t end) { return end > there; });
        if (beyond == ends.end()) continue;
        lose_rows(first + (beyond - ends.begin()) / width, why);
        break;
      }
    }
  }

  /// If a keyframe is not whole, the rows end before the row that it precedes.
  void limit_by_keyframes() {
    std::int64_t keyframes = 0;
    for (std::int64_t first = 0; first < result_.rows; first += kScanRows) {
      const auto index =
          longs(Field::row_keyframe, first, std::min(kScanRows, result_.rows - first));
      keyframes = std::max(keyframes, *std::ranges::max_element(index) + 1);
    }
    const std::int64_t all = keyframes;
    std::string why;
    for (const Field field : {Field::keyframe_row, Field::keyframe_end}) {
      keyframes = std::min(keyframes, trace_.whole_rows(field, keyframes, &why));
    }
    if (keyframes > 0) {
      const auto ends = longs(Field::keyframe_end, 0, keyframes);
      for (const Field field :
           {Field::keyframe_token, Field::keyframe_confidence, Field::keyframe_step}) {
        const std::int64_t there =
            trace_.whole_rows(field, std::max<std::int64_t>(ends.back(), 0), &why);
        const auto beyond =
            std::ranges::find_if(ends, [there](std::int64_t end) { return end > there; });
        keyframes = std::min<std::int64_t>(keyframes, beyond - ends.begin());
      }
    }
    if (keyframes < all) lose_rows(first_row_with(Field::row_keyframe, keyframes), why);
  }

  /// The first row whose value is `least` or more.
  std::int64_t first_row_with(Field field, std::int64_t least) const {
    const auto find = [least](const auto& values) {
      return std::ranges::find_if(values, [least](auto value) { return value >= least; }) -
             values.begin();
    };
    for (std::int64_t first = 0; first < result_.rows; first += kScanRows) {
      const std::int64_t part = std::min(kScanRows, result_.rows - first);
      const bool wide = spec_of(field).type == ElementType::i64;
      const std::int64_t found =
          wide ? find(longs(field, first, part)) : find(ints(field, first, part));
      if (found < part) return first + found;
    }
    return result_.rows;
  }

  void limit_by_owners() {
    result_.cut.resize(static_cast<std::size_t>(result_.sequences));
    if (result_.sequences == result_.committed_sequences) return;
    lose_rows(first_row_with(Field::step_sequence, result_.sequences), result_.why);
  }

  /// Marks sequences that own a lost row. If a lost row's owner is unknown, every sequence with
  /// undecided positions may be its owner.
  void mark_cut_sequences() {
    if (result_.rows == result_.committed_rows) return;
    const std::int64_t known = trace_.whole_rows(Field::step_sequence, result_.committed_rows);
    for (std::int64_t first = result_.rows; first < known; first += kScanRows) {
      for (const std::int32_t owner :
           ints(Field::step_sequence, first, std::min(kScanRows, known - first))) {
        if (owner >= 0 && owner < result_.sequences) {
          result_.cut[static_cast<std::size_t>(owner)] = true;
        }
      }
    }
    if (known == result_.committed_rows) return;
    const std::vector<bool> undecided = undecided_sequences();
    for (std::size_t i = 0; i < undecided.size(); ++i) {
      if (undecided[i]) result_.cut[i] = true;
    }
  }

  /// [sequences]: whether the answer has a mask after the whole rows. A row may also edit tokens,
  /// take them back, insert and delete.
  std::vector<bool> undecided_sequences() const {
    std::vector<std::vector<bool>> decided;
    for (const std::int32_t length : ints(Field::sequence_gen_length, 0, result_.sequences)) {
      decided.emplace_back(static_cast<std::size_t>(std::max(length, 0)), false);
    }
    const std::int64_t mask = trace_.meta().mask_token_id;
    Ends delta{Field::delta_end};
    Ends insertion{Field::insert_end};
    Ends deletion{Field::delete_end};
    for (std::int64_t first = 0; first < result_.rows; first += kScanRows) {
      const std::int64_t part = std::min(kScanRows, result_.rows - first);
      const auto owners = ints(Field::step_sequence, first, part);
      for (Ends* ends : {&delta, &insertion, &deletion}) {
        ends->values = longs(ends->field, first, part);
        ends->elements_begin = ends->begin;
      }
      const auto positions = elements<std::int32_t>(delta, Field::delta_position);
      const auto tokens = elements<std::int32_t>(delta, Field::delta_token);
      const auto inserted = elements<std::int32_t>(insertion, Field::insert_position);
      const auto inserted_tokens = elements<std::int32_t>(insertion, Field::insert_token);
      const auto deleted = elements<std::int32_t>(deletion, Field::delete_position);
      for (std::size_t i = 0; i < owners.size(); ++i) {
        const auto [d0, d1] = delta.next(i);
        const auto [i0, i1] = insertion.next(i);
        const auto [x0, x1] = deletion.next(i);
        if (owners[i] < 0 || std::cmp_greater_equal(owners[i], decided.size())) continue;
        std::vector<bool>& answer = decided[static_cast<std::size_t>(owners[i])];
        for (std::size_t k = d0; k < d1; ++k) {
          if (positions[k] < 0 || std::cmp_greater_equal(positions[k], answer.size())) continue;
          answer[static_cast<std::size_t>(positions[k])] = tokens[k] != mask;
        }
        for (std::size_t k = i1; k-- > i0;) {
          const auto at = std::clamp<std::int64_t>(inserted[k], 0, std::ssize(answer));
          answer.insert(answer.begin() + at, inserted_tokens[k] != mask);
        }
        std::vector<std::int32_t> gone(deleted.begin() + static_cast<std::ptrdiff_t>(x0),
                                       deleted.begin() + static_cast<std::ptrdiff_t>(x1));
        std::ranges::sort(gone, std::greater<>());
        for (const std::int32_t at : gone) {
          if (at >= 0 && std::cmp_less(at, answer.size())) answer.erase(answer.begin() + at);
        }
      }
    }
    std::vector<bool> result;
    for (const std::vector<bool>& answer : decided) {
      result.push_back(std::ranges::find(answer, false) != answer.end());
    }
    return result;
  }

  /// The elements of rows, a part of the rows at a time.
  struct Ends {
    Field field;
    std::vector<std::int64_t> values{};  // of the part's rows
    std::int64_t begin = 0;              // of the next row's elements
    std::int64_t elements_begin = 0;     // of the part's

    /// The elements of the part's row i, counted in the part.
    std::pair<std::size_t, std::size_t> next(std::size_t i) {
      const auto first = static_cast<std::size_t>(begin - elements_begin);
      begin = values[i];
      return {first, static_cast<std::size_t>(begin - elements_begin)};
    }
  };

  template <typename Value>
  std::vector<Value> elements(const Ends& ends, Field field) const {
    const std::int64_t count = ends.values.empty() ? 0 : ends.values.back() - ends.begin;
    if (count <= 0) return {};
    return trace_.column<Value>(field, ends.begin, count);
  }

  const StoredTrace& trace_;
  WholeRows result_;
};

}  // namespace

WholeRows find_whole_rows(const StoredTrace& trace) { return Search(trace).run(); }

}  // namespace blockscope
