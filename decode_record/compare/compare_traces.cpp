// See compare_traces.h.
#include "decode_record/compare/compare_traces.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <span>

#include "decode_record/compare/compare_aligned.h"
#include "decode_record/compare/compare_values.h"
#include "decode_record/read/raw_trace.h"

namespace blockscope {

namespace {

constexpr std::size_t kSlabBytes = 4U << 20U;

/// Compares one dataset, slab by slab and element by element, at the same indices.
void compare_dataset(const RawTrace& a, const RawTrace& b, Field field,
                     const CompareOptions& options, DatasetDifference& result) {
  ValueComparison values(options, a.dataset(field).element, b.dataset(field).element, result);
  const std::vector<hsize_t> shape = a.shape(field);
  const auto inner = std::span<const hsize_t>(shape).subspan(1);
  const auto count = static_cast<std::int64_t>(shape[0]);
  const std::size_t row = std::max<std::size_t>(a.row_bytes(field), 1);
  const auto slab = static_cast<std::int64_t>(std::max<std::size_t>(kSlabBytes / row, 1));
  for (std::int64_t first = 0; first < count; first += slab) {
    const std::int64_t part = std::min(slab, count - first);
    values.compare(first, inner, a.read(field, first, part), b.read(field, first, part));
  }
}

bool left_out(Field field, const CompareOptions& options) {
  switch (field) {
    case Field::model_json:
    case Field::run_json:
    case Field::run_complete:
    case Field::token_offset:
    case Field::token_bytes:
    // Positions in a byte heap: their order depends on when sequences ended. Texts are compared by
    // content below.
    case Field::sequence_text_start:
    case Field::sequence_name_start:
    case Field::sequence_answer_start:
    case Field::sequence_metric_start:
    case Field::sequence_bytes:
      return true;
    case Field::step_pass_time_ns:
    case Field::cost_block_length:
    case Field::cost_context_length:
    case Field::cost_draft_ns:
    case Field::cost_target_ns:
      return options.ignore_timing;
    default:
      return false;
  }
}

/// Compares names, answers, metrics and texts of the sequences by content.
DatasetDifference compare_texts(const RawTrace& a, const RawTrace& b) {
  DatasetDifference result;
  result.path = spec_of(Field::sequence_bytes).path;
  const std::int64_t count = a.length(Axis::sequence);
  if (count != b.length(Axis::sequence)) {
    result.problem = "different number of sequences";
    return result;
  }
  for (std::int64_t sequence = 0; sequence < count; ++sequence) {
    for (const auto& [start, length] : kSequenceTexts) {
      ++result.elements;
      if (sequence_text(a, start, length, sequence) == sequence_text(b, start, length, sequence))
        continue;
      if (result.different++ == 0) result.at = {sequence};
    }
  }
  return result;
}

std::int64_t count_aborted(const RawTrace& trace) {
  const auto marks = trace.read_integers(Field::sequence_aborted, 0, trace.length(Axis::sequence));
  return static_cast<std::int64_t>(marks.size()) - std::ranges::count(marks, 0);
}

/// Whether the shapes are equal; with `rows_only`: whether the shapes of a row are equal.
bool same_shape(const RawTrace& a, const RawTrace& b, const DatasetSpec& spec, bool rows_only) {
  const std::vector<hsize_t> here = a.shape(spec.field);
  const std::vector<hsize_t> there = b.shape(spec.field);
  const std::ptrdiff_t first = rows_only && spec.extendible() ? 1 : 0;
  return std::equal(here.begin() + first, here.end(), there.begin() + first, there.end());
}

}  // namespace

TraceDifference compare_traces(const std::string& a, const std::string& b,
                               const CompareOptions& options) {
  const RawTrace first(a);
  const RawTrace second(b);
  std::optional<AlignedComparison> aligned;
  if (options.ignore_aborted) aligned.emplace(first, second, options);
  TraceDifference result;
  result.aborted_a = count_aborted(first);
  result.aborted_b = count_aborted(second);
  if (aligned) result.datasets = aligned->unmatched();
  for (const DatasetSpec& spec : kDatasets) {
    const bool in_first = first.has(spec.field);
    const bool in_second = second.has(spec.field);
    if (left_out(spec.field, options) || (!in_first && !in_second)) continue;
    if (aligned && AlignedComparison::is_place(spec.field)) continue;
    DatasetDifference difference;
    difference.path = spec.path;
    if (in_first != in_second) {
      difference.problem = fmt::format("only in the {} trace", in_first ? "first" : "second");
    } else if (!same_shape(first, second, spec, aligned.has_value())) {
      difference.problem =
          fmt::format("shape [{}] against [{}]", fmt::join(first.shape(spec.field), ", "),
                      fmt::join(second.shape(spec.field), ", "));
    } else if (aligned) {
      aligned->run(spec.field, difference);
    } else {
      compare_dataset(first, second, spec.field, options, difference);
    }
    result.datasets.push_back(std::move(difference));
  }
  result.datasets.push_back(aligned ? aligned->texts() : compare_texts(first, second));
  result.equal = std::ranges::all_of(result.datasets, [](const auto& d) { return d.equal(); });
  return result;
}

}  // namespace blockscope
