// See repack.h. Works on bare datasets: chunks that were never written stay unwritten, columns go
// through memory a slab at a time, and only the columns that hold indices are looked into.
#include "decode_record/repack.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "decode_record/command_files.h"
#include "decode_record/raw_trace.h"
#include "decode_record/text.h"
#include "decode_record/trace_file.h"
#include "decode_record/trace_header.h"

namespace blockscope {

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSlabBytes = 4 << 20;

using Traces = std::vector<std::unique_ptr<RawTrace>>;
using Lengths = std::array<std::int64_t, static_cast<std::size_t>(Axis::count)>;

/// The axis whose elements a column counts; its values are shifted when files are merged.
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
    case Field::delta_end:
      return Axis::delta;
    case Field::insert_end:
      return Axis::insertion;
    case Field::delete_end:
      return Axis::deletion;
    case Field::row_keyframe:
      return Axis::keyframe;
    case Field::keyframe_end:
      return Axis::keyframe_element;
    case Field::prefix_end:
      return Axis::prefix_element;
    default:
      return std::nullopt;
  }
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

/// Sequences without an end are cut: they are marked, and a text that may be torn is dropped.
class CutSequences {
 public:
  explicit CutSequences(const RawTrace& trace) {
    const std::int64_t count = trace.length(Axis::sequence);
    const auto reasons = trace.read_integers(Field::sequence_finish_reason, 0, count);
    for (const std::int64_t reason : reasons) {
      const auto end = static_cast<FinishReason>(reason);
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
  Repacker(const Traces& traces, TraceFile& output, bool is_virtual, const RepackOptions& options)
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
    return !is_virtual_ || !TraceFile::is_virtual(spec);
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
    // Whole chunks of the output at a time, so that no chunk is compressed twice.
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

  /// Chunks of one row (and layer); those that the recorder's filters left out stay absent.
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

  /// The next file begins behind this one.
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

  const Traces& traces_;
  TraceFile& output_;
  bool is_virtual_;
  const RepackOptions& options_;
  Lengths done_{};
  std::int64_t done_bytes_ = 0;
  std::int64_t total_bytes_ = 0;
  std::int64_t next_pass_ = 0;
};

std::vector<std::byte> whole(const RawTrace& trace, Field field) {
  return trace.read(field, 0, static_cast<std::int64_t>(trace.dataset(field).extent[0]));
}

/// Throws when another input before `trace` is the same file, by whatever name.
void refuse_same_file(const Traces& traces, const RawTrace& trace) {
  for (const auto& other : traces) {
    std::error_code ignored;
    if (other.get() == &trace) return;
    if (!fs::equivalent(other->path(), trace.path(), ignored)) continue;
    throw UsageError(fmt::format(
        "{}: is the same file as {}: its rows would be there twice. HINT: give every trace once",
        trace.path(), other->path()));
  }
}

void check_inputs(const Traces& traces, const RepackOptions& options) {
  const RawTrace& first = *traces.front();
  for (const auto& trace : traces) {
    if (!trace->complete() && !options.repair) {
      throw UsageError(
          fmt::format("{}: expected a trace whose run ended, got an unfinished one. "
                      "HINT: pass --repair to keep its committed rows",
                      trace->path()));
    }
    refuse_same_file(traces, *trace);
    if (trace == traces.front()) continue;
    check_same_layout(trace->meta(), first.meta(), trace->path(), first.path());
    const bool same = trace->meta().model_json == first.meta().model_json &&
                      whole(*trace, Field::token_bytes) == whole(first, Field::token_bytes);
    if (!same) {
      throw UsageError(
          fmt::format("{}: expected the model and vocabulary of {}, got others. HINT: "
                      "only files of one run can be merged",
                      trace->path(), first.path()));
    }
  }
}

std::string repacked_run_json(const Traces& traces, const RepackOptions& options) {
  auto run = nlohmann::ordered_json::parse(traces.front()->meta().run_json, nullptr, false);
  if (!run.is_object()) return traces.front()->meta().run_json;
  auto inputs = nlohmann::ordered_json::array();
  for (const auto& trace : traces) {
    inputs.push_back({{"file", fs::path(trace->path()).filename().string()},
                      {"rows", trace->length(Axis::row)},
                      {"sequences", trace->length(Axis::sequence)},
                      {"complete", trace->complete()}});
    const WholeRows& whole = trace->whole();
    if (whole.all()) continue;
    inputs.back()["lost"] = {{"committed_rows", whole.committed_rows},
                             {"committed_sequences", whole.committed_sequences},
                             {"cut_sequences", std::ranges::count(whole.cut, true)},
                             {"why", whole.why}};
  }
  run["repacked"] = {{"inputs", inputs}, {"deflate", options.deflate}, {"repair", options.repair}};
  return run.dump();
}

TraceMeta output_meta(const Traces& traces, const RepackOptions& options) {
  const RawTrace& first = *traces.front();
  TraceMeta meta = first.meta();
  meta.run_json = repacked_run_json(traces, options);
  const auto offsets =
      first.read_integers(Field::token_offset, 0,
                          static_cast<std::int64_t>(first.dataset(Field::token_offset).extent[0]));
  const auto bytes = whole(first, Field::token_bytes);
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    const std::int64_t end = offsets[i + 1];
    if (offsets[i] < 0 || end < offsets[i] || end > static_cast<std::int64_t>(bytes.size())) {
      throw CorruptTrace(
          fmt::format("{}:/tokenizer/piece_offset: element {} lies outside the {} "
                      "bytes of the pieces",
                      first.path(), i + 1, bytes.size()));
    }
    const auto* text = reinterpret_cast<const char*>(bytes.data());
    meta.pieces.emplace_back(text + offsets[i], text + end);
  }
  return meta;
}

/// Whether another file can show the trace's arrays: it holds them itself, and nothing behind them.
bool can_be_shown(const RawTrace& trace) {
  return std::ranges::all_of(kDatasets, [&](const DatasetSpec& spec) {
    if (!trace.has(spec.field) || !TraceFile::is_virtual(spec)) return true;
    const h5::Dataset& dataset = trace.dataset(spec.field);
    return dataset.parts.empty() && std::cmp_equal(dataset.extent[0], trace.length(spec.axes[0]));
  });
}

/// The inputs as a virtual output names them; none when their arrays must be copied.
std::vector<VirtualSource> virtual_sources(const Traces& traces, const std::string& output,
                                           const RepackOptions& options) {
  const bool can = traces.size() > 1 && options.deflate == 0 && !options.copy && !options.repair &&
                   std::ranges::all_of(traces, [](const auto& t) { return can_be_shown(*t); });
  if (!can) return {};
  const fs::path folder = fs::absolute(output).parent_path();
  std::vector<VirtualSource> sources;
  for (const auto& trace : traces) {
    VirtualSource& source = sources.emplace_back();
    source.file = fs::absolute(trace->path()).lexically_proximate(folder).string();
    for (std::size_t i = 0; i < source.lengths.size(); ++i) {
      source.lengths[i] = trace->length(static_cast<Axis>(i));
    }
  }
  return sources;
}

void sync_and_rename(const std::string& temporary, const std::string& output, bool force) {
  const int descriptor = ::open(temporary.c_str(), O_RDONLY | O_CLOEXEC);
  const bool synced = descriptor >= 0 && ::fsync(descriptor) == 0;
  const std::string reason = synced ? "" : std::strerror(errno);
  if (descriptor >= 0) ::close(descriptor);
  const std::string problem = synced ? rename_output(temporary, output, force) : reason;
  if (!problem.empty()) {
    throw TraceError(
        fmt::format("{}: cannot be finished: {}. HINT: check the free space", output, problem));
  }
}

std::unique_ptr<RawTrace> open_input(const std::string& path, const RepackOptions& options) {
  if (!options.repair) return std::make_unique<RawTrace>(path);
  const bool live = TraceFile::has_writer(existing_trace(path));
  auto trace = std::make_unique<RawTrace>(path, RawTrace::Opening::salvage,
                                          live ? Writer::maybe : Writer::none);
  const WholeRows& whole = trace->whole();
  if (whole.committed_rows > 0 && whole.rows == 0) {
    throw CorruptTrace(fmt::format("{}: none of {} is whole: {}", trace->path(),
                                   plural(whole.committed_rows, "committed row"), whole.why));
  }
  return trace;
}

std::vector<RepackLoss> losses(const Traces& traces) {
  std::vector<RepackLoss> result;
  for (const auto& trace : traces) {
    const WholeRows& whole = trace->whole();
    if (whole.all()) continue;
    result.push_back({trace->path(), whole.rows, whole.committed_rows, whole.sequences,
                      whole.committed_sequences, std::ranges::count(whole.cut, true), whole.why});
  }
  return result;
}

/// What a repack to the same output left that was killed. One that is alive keeps its file.
void remove_leftover(const std::string& temporary) {
  TraceFile::remove_unborn(temporary);
  TraceFile::remove_left(temporary);
}

}  // namespace

RepackResult repack_traces(const std::vector<std::string>& inputs, const std::string& output,
                           const RepackOptions& options) {
  if (inputs.empty()) throw UsageError("repack: expected at least one trace, got none");
  Traces traces;
  for (const std::string& input : inputs) traces.push_back(open_input(input, options));
  CommandFiles files;
  for (const auto& trace : traces) files.reads_trace(trace->path());
  files.reserve(output, options.force);
  check_inputs(traces, options);

  const std::string temporary = output + ".tmp";
  remove_leftover(temporary);
  const std::vector<VirtualSource> sources = virtual_sources(traces, output, options);
  RepackResult result;
  try {
    TraceFile file =
        TraceFile::create(temporary, output_meta(traces, options), options.deflate, sources);
    result = Repacker(traces, file, !sources.empty(), options).run();
    file.trim();
    file.close();
    sync_and_rename(temporary, output, options.force);
  } catch (...) {
    std::error_code ignored;
    if (!TraceFile::has_writer(temporary)) fs::remove(temporary, ignored);
    throw;
  }
  for (const auto& trace : traces) {
    result.bytes_before += static_cast<std::int64_t>(fs::file_size(trace->path()));
  }
  result.lost = losses(traces);
  result.is_virtual = !sources.empty();
  result.bytes_after = static_cast<std::int64_t>(fs::file_size(output));
  return result;
}

}  // namespace blockscope
