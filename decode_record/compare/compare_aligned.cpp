// See compare_aligned.h. For every axis there is a list of parts that match in both traces.
#include "decode_record/compare/compare_aligned.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>

#include "decode_record/base/text.h"
#include "decode_record/compare/compare_values.h"

namespace blockscope {
namespace {

constexpr std::size_t kPieceBytes = 4U << 20U;
// Rows of a batch's sequences alternate, so small rows are read in slabs and picked out.
constexpr std::size_t kSmallRow = 4096;
constexpr std::size_t kPickedBytes = 1U << 20U;

/// Reads rows of one dataset, one slab at a time.
class RowSource {
 public:
  RowSource(const RawTrace& trace, Field field, std::int64_t length)
      : trace_(trace), field_(field), length_(length), row_(trace.row_bytes(field)) {}
  std::span<const std::byte> rows(std::int64_t first, std::int64_t count) {
    if (first < first_ || first + count > first_ + count_) {
      const bool small = row_ < kSmallRow;
      const auto ahead = static_cast<std::int64_t>(kPickedBytes / std::max<std::size_t>(row_, 1));
      first_ = first;
      count_ = small ? std::min(length_ - first, std::max(count, ahead)) : count;
      bytes_ = trace_.read(field_, first_, count_);
    }
    return std::span<const std::byte>(bytes_).subspan(
        static_cast<std::size_t>(first - first_) * row_, static_cast<std::size_t>(count) * row_);
  }

 private:
  const RawTrace& trace_;
  Field field_;
  std::int64_t length_;
  std::size_t row_;
  std::int64_t first_ = 0;
  std::int64_t count_ = 0;
  std::vector<std::byte> bytes_;
};

std::string key_of(const RawTrace& trace, std::int64_t sequence) {
  std::string key =
      sequence_text(trace, kSequenceTexts[0].first, kSequenceTexts[0].second, sequence);
  const auto hash = trace.read(Field::sequence_prompt_hash, sequence, 1);
  key.append(reinterpret_cast<const char*>(hash.data()), hash.size());
  return key;
}

/// The sequences that were not aborted, by name and prompt; equal ones in their order.
std::map<std::string, std::vector<std::int64_t>> real_sequences(const RawTrace& trace) {
  std::map<std::string, std::vector<std::int64_t>> result;
  const std::int64_t count = trace.length(Axis::sequence);
  const auto aborted = trace.read_integers(Field::sequence_aborted, 0, count);
  for (std::int64_t i = 0; i < count; ++i) {
    if (aborted[static_cast<std::size_t>(i)] == 0) result[key_of(trace, i)].push_back(i);
  }
  return result;
}

}  // namespace

std::string sequence_text(const RawTrace& trace, Field start, Field length, std::int64_t sequence) {
  const std::int64_t at = trace.read_integers(start, sequence, 1).front();
  const std::int64_t size = trace.read_integers(length, sequence, 1).front();
  const std::int64_t limit = trace.length(Axis::text_byte);
  if (at < 0 || size < 0 || at > limit || size > limit - at) return {};
  const auto bytes = trace.read(Field::sequence_bytes, at, size);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

AlignedComparison::AlignedComparison(const RawTrace& a, const RawTrace& b,
                                     const CompareOptions& options)
    : a_(a), b_(b), options_(options) {
  match_sequences();
  match_prompts();
  match_rows();
  match_ranges(Axis::keyframe_element, Field::keyframe_end, Axis::keyframe);
  for (const RangeSpec& range : kRowRanges) {
    const bool both = a.has(range.end) && b.has(range.end);
    if (both) match_ranges(range.axis, range.end, Axis::row);
  }
}

bool AlignedComparison::is_place(Field field) {
  switch (field) {
    case Field::row:
    case Field::step_committed:
    case Field::sequence_committed:
    case Field::sequence_prompt_start:
    case Field::step_sequence:
    case Field::step_pass:
    case Field::step_previous:
    case Field::row_keyframe:
    case Field::keyframe_row:
    case Field::keyframe_end:
    case Field::prefix_sequence:
      return true;
    default:
      return std::ranges::find(kRowRanges, field, &RangeSpec::end) != kRowRanges.end();
  }
}

void AlignedComparison::problem(const std::string& path, const std::string& what) {
  const bool known = std::ranges::any_of(
      unmatched_, [&](const DatasetDifference& difference) { return difference.path == path; });
  if (known) return;  // the first problem is enough
  DatasetDifference& difference = unmatched_.emplace_back();
  difference.path = path;
  difference.problem = what;
}

void AlignedComparison::add(Axis axis, Part part) {
  if (part.count == 0) return;
  Parts& list = parts(axis);
  if (!list.empty() && list.back().a + list.back().count == part.a &&
      list.back().b + list.back().count == part.b) {
    list.back().count += part.count;
  } else {
    list.push_back(part);
  }
}

void AlignedComparison::match_sequences() {
  const auto in_a = real_sequences(a_);
  const auto in_b = real_sequences(b_);
  const auto only = [&](const RawTrace& trace, std::int64_t sequence) {
    problem("/sequences", fmt::format("{} ('{}') is only in {}", sequence,
                                      sequence_text(trace, kSequenceTexts[0].first,
                                                    kSequenceTexts[0].second, sequence),
                                      trace.path()));
  };
  for (const auto& [key, here] : in_a) {
    const auto found = in_b.find(key);
    const std::size_t there = found == in_b.end() ? 0 : found->second.size();
    for (std::size_t i = 0; i < here.size(); ++i) {
      if (i >= there) {
        only(a_, here[i]);
      } else {
        sequences_.emplace_back(here[i], found->second[i]);
      }
    }
  }
  for (const auto& [key, there] : in_b) {
    const auto found = in_a.find(key);
    const std::size_t here = found == in_a.end() ? 0 : found->second.size();
    if (there.size() > here) only(b_, there[here]);
  }
  std::ranges::sort(sequences_);
  for (const auto& [a, b] : sequences_) add(Axis::sequence, {a, b, 1});
}

void AlignedComparison::match_prompts() {
  for (const auto& [a, b] : sequences_) {
    const auto start = [](const RawTrace& trace, std::int64_t sequence) {
      return trace.read_integers(Field::sequence_prompt_start, sequence, 1).front();
    };
    const auto length = [](const RawTrace& trace, std::int64_t sequence) {
      return trace.read_integers(Field::sequence_prompt_length, sequence, 1).front();
    };
    // The lengths are compared as values of their own.
    add(Axis::prompt_element, {start(a_, a), start(b_, b), std::min(length(a_, a), length(b_, b))});
  }
}

void AlignedComparison::match_rows() {
  const auto owned = [](const RawTrace& trace) {
    std::vector<Owned> result(static_cast<std::size_t>(trace.length(Axis::sequence)));
    const std::int64_t rows = trace.length(Axis::row);
    const auto owners = trace.read_integers(Field::step_sequence, 0, rows);
    for (std::int64_t row = 0; row < rows; ++row) {
      result[static_cast<std::size_t>(owners[static_cast<std::size_t>(row)])].rows.push_back(row);
    }
    const std::int64_t keyframes = trace.length(Axis::keyframe);
    const auto before = trace.read_integers(Field::keyframe_row, 0, keyframes);
    for (std::int64_t k = 0; k < keyframes; ++k) {
      const auto row = static_cast<std::size_t>(before[static_cast<std::size_t>(k)]);
      result[static_cast<std::size_t>(owners[row])].keyframes.push_back(k);
    }
    return result;
  };
  const std::vector<Owned> in_a = owned(a_);
  const std::vector<Owned> in_b = owned(b_);
  const auto pair_up = [&](Axis axis, const std::vector<std::int64_t>& here,
                           const std::vector<std::int64_t>& there, std::int64_t sequence,
                           const char* word) {
    if (here.size() != there.size()) {
      problem(axis == Axis::row ? "/steps" : "/frames/keyframe_row",
              fmt::format("sequence {}: {} against {}", sequence,
                          plural(static_cast<std::int64_t>(here.size()), word), there.size()));
    }
    for (std::size_t i = 0; i < std::min(here.size(), there.size()); ++i) {
      add(axis, {here[i], there[i], 1});
    }
  };
  for (const auto& [a, b] : sequences_) {
    const Owned& here = in_a[static_cast<std::size_t>(a)];
    const Owned& there = in_b[static_cast<std::size_t>(b)];
    pair_up(Axis::row, here.rows, there.rows, a, "row");
    pair_up(Axis::keyframe, here.keyframes, there.keyframes, a, "keyframe");
  }
}

void AlignedComparison::match_ranges(Axis axis, Field end_field, Axis owner) {
  const auto ends_of = [&](const RawTrace& trace) {
    return trace.read_integers(end_field, 0, trace.length(owner));
  };
  const auto in_a = ends_of(a_);
  const auto in_b = ends_of(b_);
  const auto begin = [](const std::vector<std::int64_t>& ends, std::int64_t i) {
    return i == 0 ? 0 : ends[static_cast<std::size_t>(i - 1)];
  };
  // Each model layer of a row has a range of its own.
  const auto width = static_cast<std::int64_t>(a_.row_bytes(end_field) / sizeof(std::int64_t));
  if (a_.row_bytes(end_field) != b_.row_bytes(end_field)) return;  // another shape: reported before
  for (Part part : parts(owner)) {
    part = {part.a * width, part.b * width, part.count * width};
    for (std::int64_t i = 0; i < part.count; ++i) {
      const std::int64_t a = begin(in_a, part.a + i);
      const std::int64_t b = begin(in_b, part.b + i);
      const std::int64_t here = in_a[static_cast<std::size_t>(part.a + i)] - a;
      const std::int64_t there = in_b[static_cast<std::size_t>(part.b + i)] - b;
      if (here == there) {
        add(axis, {a, b, here});
        continue;
      }
      problem(std::string(spec_of(end_field).path),
              fmt::format("{} {} of the first trace: {} against {}", to_string(owner),
                          (part.a + i) / width, plural(here, "element"), there));
    }
  }
}

void AlignedComparison::run(Field field, DatasetDifference& result) const {
  const DatasetSpec& spec = spec_of(field);
  const h5::Dataset& here = a_.dataset(field);
  const h5::Dataset& there = b_.dataset(field);
  ValueComparison values(options_, here.element, there.element, result);
  const auto inner = std::span<const hsize_t>(here.extent).subspan(1);
  const auto row = std::max<std::size_t>(a_.row_bytes(field), 1);
  const auto most = static_cast<std::int64_t>(std::max<std::size_t>(kPieceBytes / row, 1));
  const auto length = [&](const RawTrace& trace) {
    return static_cast<std::int64_t>(trace.shape(field)[0]);
  };
  RowSource in_a(a_, field, length(a_));
  RowSource in_b(b_, field, length(b_));
  const Parts whole = {{0, 0, length(a_)}};
  for (const Part& part : spec.extendible() ? parts(spec.axes[0]) : whole) {
    for (std::int64_t done = 0; done < part.count; done += most) {
      const std::int64_t count = std::min(most, part.count - done);
      values.compare(part.a + done, inner, in_a.rows(part.a + done, count),
                     in_b.rows(part.b + done, count));
    }
  }
}

DatasetDifference AlignedComparison::texts() const {
  DatasetDifference result;
  result.path = spec_of(Field::sequence_bytes).path;
  for (const auto& [a, b] : sequences_) {
    for (const auto& [start, length] : kSequenceTexts) {
      ++result.elements;
      if (sequence_text(a_, start, length, a) == sequence_text(b_, start, length, b)) continue;
      if (result.different++ == 0) result.at = {a};
    }
  }
  return result;
}

}  // namespace blockscope
