// See repack_copy.h. Works on plain datasets. Chunks that were never written stay unwritten.
// Columns go through memory one slab at a time. Only columns that hold indices are changed.
#include "decode_record/repack/repack_copy.h"

#include <algorithm>
#include <cstring>
#include <optional>

namespace blockscope {
namespace {

constexpr std::int64_t kSlabBytes = 4 << 20;

using Lengths = std::array<std::int64_t, static_cast<std::size_t>(Axis::count)>;

/// The axis that a column's values count. A merge shifts these values.
std::optional<Axis> counted_axis(Field field) {
  switch (field) {
    case Field::row:
    case Field::step_previous:
    case Field::keyframe_row:
      return Axis::row;
    case Field::step_sequence:
    case Field::prefix_sequence:
      return Axis::sequence;
    case Field::sequence_prompt_start:
      return Axis::prompt_element;
    case Field::sequence_name_start:
    case Field::sequence_answer_start:
    case Field::sequence_metric_start:
    case Field::sequence_text_start:
      return Axis::text_byte;
    case Field::row_keyframe:
      return Axis::keyframe;
    case Field::keyframe_end:
      return Axis::keyframe_element;
    default:
      break;
  }
  const auto range = std::ranges::find(kRowRanges, field, &RangeSpec::end);
  if (range == kRowRanges.end()) return std::nullopt;
  return range->axis;
}

void add_to_elements(std::vector<std::byte>& bytes, h5::Element element, std::int64_t shift) {
  const std::size_t size = h5::size_of(element);
  for (std::size_t at = 0; at + size <= bytes.size(); at += size) {
    if (size == 4) {
      std::int32_t value = 0;
      std::memcpy(&value, &bytes[at], 4);
      if (value >= 0) value = static_cast<std::int32_t>(value + shift);  // -1: none
      std::memcpy(&bytes[at], &value, 4);
    } else {
      std::int64_t value = 0;
      std::memcpy(&value, &bytes[at], 8);
      if (value >= 0) value += shift;
      std::memcpy(&bytes[at], &value, 8);
    }
  }
}

/// Sequences without an end are cut: marks them, and drops a text that may be incomplete.
class CutSequences {
 public:
  explicit CutSequences(const RawTrace& trace) {
    const auto count = static_cast<std::size_t>(trace.length(Axis::sequence));
    for (std::size_t i = 0; i < count; ++i) {
      const auto end = static_cast<FinishReason>(trace.finish_reasons()[i]);
      const std::vector<bool>& cut = trace.whole().cut;
      const bool lost = cut_.size() < cut.size() && cut[cut_.size()];
      torn_.push_back(lost || end == FinishReason::unfinished);
      cut_.push_back(torn_.back() || end == FinishReason::interrupted);
    }
  }
  std::int64_t count() const { return std::ranges::count(cut_, true); }
  void change(Field field, std::int64_t first, std::vector<std::byte>& bytes) const {
    const bool mark = field == Field::sequence_aborted;
    const bool end = field == Field::sequence_finish_reason;
    const bool start = field == Field::sequence_text_start;
    const bool drop = end || start || field == Field::sequence_text_length;
    if (!mark && !drop) return;
    const std::size_t size = mark || end ? 1 : start ? 8 : 4;
    for (std::size_t i = 0; i < bytes.size() / size; ++i) {
      const std::size_t sequence = static_cast<std::size_t>(first) + i;
      if (mark && cut_[sequence]) bytes[i] = std::byte{1};
      if (drop && torn_[sequence]) std::memset(&bytes[i * size], 0, size);
    }
  }

 private:
  std::vector<bool> cut_;
  std::vector<bool> torn_;
};

class Repacker {
 public:
  Repacker(const RawTraces& traces, TraceFile& output, bool is_virtual,
           const RepackOptions& options)
      : traces_(traces), output_(output), is_virtual_(is_virtual), options_(options) {}

  RepackResult run() {
    RepackResult result;
    for (const auto& trace : traces_) {
      for (const DatasetSpec& spec : kDatasets) {
        if (is_copied(*trace, spec)) total_bytes_ += bytes_of(*trace, spec, length(*trace, spec));
      }
    }
    for (const auto& trace : traces_) {
      const CutSequences cut(*trace);
      result.aborted += cut.count();
      for (std::size_t i = 0; i < done_.size(); ++i) {
        output_.grow(static_cast<Axis>(i), trace->length(static_cast<Axis>(i)));
      }
      for (const DatasetSpec& spec : kDatasets) {
        if (is_copied(*trace, spec)) copy(*trace, spec, cut);
      }
      advance(*trace);
    }
    result.rows = at(Axis::row);
    result.sequences = at(Axis::sequence);
    const std::uint8_t complete =
        std::ranges::all_of(traces_, [](const auto& trace) { return trace->complete(); }) ? 1 : 0;
    output_.overwrite(Field::step_committed, 0, &result.rows);
    output_.overwrite(Field::sequence_committed, 0, &result.sequences);
    output_.overwrite(Field::run_complete, 0, &complete);
    return result;
  }

 private:
  std::int64_t& at(Axis axis) { return done_[static_cast<std::size_t>(axis)]; }

  bool is_copied(const RawTrace& trace, const DatasetSpec& spec) const {
    if (!spec.extendible() || !trace.has(spec.field)) return false;
    return !is_virtual_ || !is_virtual(spec);
  }
  static std::int64_t length(const RawTrace& trace, const DatasetSpec& spec) {
    return trace.length(spec.axes[0]);
  }
  static std::int64_t bytes_of(const RawTrace& trace, const DatasetSpec& spec, std::int64_t count) {
    return count * static_cast<std::int64_t>(trace.row_bytes(spec.field));
  }

  void report(const RawTrace& trace, const DatasetSpec& spec, std::int64_t count) {
    done_bytes_ += bytes_of(trace, spec, count);
    if (options_.progress) options_.progress(done_bytes_, total_bytes_);
  }

  void copy(const RawTrace& trace, const DatasetSpec& spec, const CutSequences& cut) {
    const std::int64_t count = length(trace, spec);
    if (spec.storage == Storage::row || spec.storage == Storage::row_layer) {
      copy_chunks(trace, spec, count);
      return;
    }
    // Copies whole chunks of the output at a time, so that no chunk is compressed twice.
    const auto row =
        static_cast<std::int64_t>(std::max<std::size_t>(trace.row_bytes(spec.field), 1));
    const std::int64_t chunk = chunk_of(spec, trace.meta()).front();
    const std::int64_t slab = std::max<std::int64_t>(kSlabBytes / row / chunk, 1) * chunk;
    const std::int64_t lead = (chunk - at(spec.axes[0]) % chunk) % chunk;
    for (std::int64_t first = 0; first < count;) {
      const std::int64_t wanted = first == 0 && lead > 0 ? lead : slab;
      const std::int64_t part = std::min(wanted, count - first);
      std::vector<std::byte> bytes = trace.read(spec.field, first, part);
      shift(spec.field, trace.dataset(spec.field).element, bytes);
      cut.change(spec.field, first, bytes);
      output_.append(spec.field, bytes.data(), bytes.size());
      output_.write_pending();
      first += part;
      report(trace, spec, part);
    }
  }

  /// Copies chunks of one row (and layer). Those that the recorder's filters left out stay absent.
  void copy_chunks(const RawTrace& trace, const DatasetSpec& spec, std::int64_t count) {
    const bool by_layer = spec.storage == Storage::row_layer;
    const std::int64_t layers = by_layer ? axis_length(Axis::layer, trace.meta()) : 1;
    std::vector<hsize_t> offset(spec.rank, 0);
    for (std::int64_t row = 0; row < count; ++row) {
      offset[0] = static_cast<hsize_t>(row);
      for (std::int64_t layer = 0; layer < layers; ++layer) {
        if (by_layer) offset[1] = static_cast<hsize_t>(layer);
        if (!h5::chunk_written(trace.dataset(spec.field), offset)) continue;
        const auto bytes =
            by_layer ? trace.read_layer(spec.field, row, 1, layer) : trace.read(spec.field, row, 1);
        const std::int64_t target = at(Axis::row) + row;
        if (by_layer) {
          output_.write_layer(spec.field, target, 1, layer, bytes.data(), bytes.size());
        } else {
          output_.write_row(spec.field, target, bytes.data(), bytes.size());
        }
      }
      report(trace, spec, 1);
    }
  }

  void shift(Field field, h5::Element element, std::vector<std::byte>& bytes) {
    if (field == Field::step_pass) {
      add_to_elements(bytes, element, next_pass_);
    } else if (const auto axis = counted_axis(field)) {
      add_to_elements(bytes, element, at(*axis));
    }
  }

  /// Shifts the indices of the next file by the lengths of this one.
  void advance(const RawTrace& trace) {
    const std::int64_t rows = trace.length(Axis::row);
    if (rows > 0) {
      const auto passes = trace.read_integers(Field::step_pass, 0, rows);
      next_pass_ += *std::ranges::max_element(passes) + 1;
    }
    for (std::size_t i = 0; i < done_.size(); ++i) {
      done_[i] += trace.length(static_cast<Axis>(i));
    }
  }

  const RawTraces& traces_;
  TraceFile& output_;
  bool is_virtual_;
  const RepackOptions& options_;
  Lengths done_{};
  std::int64_t done_bytes_ = 0;
  std::int64_t total_bytes_ = 0;
  std::int64_t next_pass_ = 0;
};

}  // namespace

RepackResult copy_traces(const RawTraces& traces, TraceFile& output, bool is_virtual,
                         const RepackOptions& options) {
  return Repacker(traces, output, is_virtual, options).run();
}

}  // namespace blockscope
