// Resuming: checks what a file must hold for it, and returns a file that a killed writer left to
// its committed state.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "decode_record/base/text.h"
#include "decode_record/read/trace_check.h"
#include "decode_record/read/whole_rows.h"
#include "decode_record/write/trace_store.h"

namespace blockscope {
namespace {

/// A value read from the file that must lie in [0, limit].
std::int64_t checked_value(const std::string& path, std::int64_t value, std::int64_t limit,
                           std::string_view what) {
  if (value < 0 || value > limit) {
    throw CorruptTrace(path + ":" + std::string(what) + ": expected 0 to " + std::to_string(limit) +
                       ", got " + std::to_string(value) +
                       ". HINT: the trace is damaged; start a new one with --force.");
  }
  return value;
}

bool grows(Axis axis) {
  return std::ranges::any_of(kDatasets, [axis](const DatasetSpec& spec) {
    return spec.extendible() && spec.axes[0] == axis;
  });
}

}  // namespace

std::optional<h5::Dataset> open_bare_scale(const h5::File& file, Axis axis) {
  const std::string name = fmt::format("/{}", to_string(axis));
  const bool coordinate = std::ranges::any_of(
      kDatasets, [&name](const DatasetSpec& spec) { return spec.path == name; });
  if (coordinate || !grows(axis) || !h5::exists(file, name)) return std::nullopt;
  return h5::open_dataset(file, name, h5::Element::u8, 1);
}

/// Only reads, but everything that a writer will use: once the writer goes on, there is no way
/// back.
void TraceFile::check_resumable(const std::string& path, const TraceMeta& meta) {
  StoredTrace trace(path, Writer::none);
  if (trace.meta().format_version != version_of(trace.meta())) {
    throw UnsupportedVersion(
        fmt::format("{}: expected a trace of schema {} to go on with, got schema {}. HINT: capture "
                    "again under another name; the trace can still be read.",
                    path, version_of(trace.meta()), trace.meta().format_version));
  }
  check_same_layout(trace.meta(), meta, path);
  for (const DatasetSpec& spec : kDatasets) {
    if (!trace.has(spec.field)) continue;
    const h5::Dataset& dataset = trace.opened(spec.field);
    if (!spec.extendible()) continue;
    if (!std::ranges::equal(chunk_of(spec, meta), dataset.chunk,
                            [](auto a, auto b) { return std::cmp_equal(a, b); })) {
      throw TraceError(
          fmt::format("{}: the dataset is not chunked as a capture writes it. HINT: a "
                      "repacked trace can't be resumed.",
                      dataset.name));
    }
    trace.check_index(spec.field);
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(Axis::count); ++i) {
    (void)open_bare_scale(trace.file(), static_cast<Axis>(i));
  }
  const WholeRows whole = find_whole_rows(trace);
  if (!whole.all()) {
    throw CorruptTrace(fmt::format(
        "{}: only {} of {} are whole: {} HINT: a kill is not the cause; `blockscope repack "
        "--repair` keeps them in a new file, --force starts anew.",
        path, whole.rows, plural(whole.committed_rows, "committed row"), whole.why));
  }
  TraceCheck check(trace);
  check.sequences(whole.sequences);
  check.rows(whole.rows);
}

ResumeState TraceStore::recover() {
  ResumeState state;
  const auto checked = [this](std::int64_t value, std::int64_t limit, std::string_view what) {
    return checked_value(file_.path(), value, limit, what);
  };
  const std::int64_t rows =
      checked(file_.read_ints(Field::step_committed, 0, 1).front(), num_rows(), "/steps/committed");
  const std::int64_t sequences = checked(file_.read_ints(Field::sequence_committed, 0, 1).front(),
                                         num_sequences(), "/sequences/committed");
  const auto last = [&](Field field, std::int64_t count, Axis axis) {
    const std::int64_t end = count == 0 ? 0 : file_.read_ints(field, count - 1, 1).back();
    return checked(end, file_.length(axis), spec_of(field).path);
  };
  const auto largest = [this](Field field, std::int64_t count) {
    std::int64_t result = -1;
    for (std::int64_t at = 0; at < count; at += 65536) {
      const auto part = file_.read_ints(field, at, std::min<std::int64_t>(65536, count - at));
      result = std::max(result, *std::ranges::max_element(part));
    }
    return result;
  };
  const std::int64_t keyframes =
      checked(largest(Field::row_keyframe, rows) + 1, num_keyframes(), "/frames/keyframe");
  state.num_rows = rows;
  state.num_sequences = sequences;
  state.next_pass = largest(Field::step_pass, rows) + 1;

  std::vector<std::pair<Axis, std::int64_t>> owned;
  for (const RangeSpec& range : kRowRanges) {
    if (file_.has(range.end)) owned.emplace_back(range.axis, last(range.end, rows, range.axis));
  }
  const std::int64_t elements = last(Field::keyframe_end, keyframes, Axis::keyframe_element);
  std::int64_t prompt_elements = 0;
  if (sequences > 0) {
    prompt_elements =
        checked(file_.read_ints(Field::sequence_prompt_start, sequences - 1, 1).front() +
                    file_.read_ints(Field::sequence_prompt_length, sequences - 1, 1).front(),
                file_.length(Axis::prompt_element), "/sequences/prompt_start");
  }
  abort_cut_sequences(sequences, state);
  file_.drop_rows_behind(rows);
  file_.truncate(Axis::sequence, sequences);
  for (const auto& [axis, length] : owned) file_.truncate(axis, length);
  file_.truncate(Axis::keyframe, keyframes);
  file_.truncate(Axis::keyframe_element, elements);
  file_.truncate(Axis::prompt_element, prompt_elements);
  // Bytes of texts that were not committed stay, but nothing points to them.
  file_.truncate(Axis::text_byte, file_.length(Axis::text_byte));
  const std::uint8_t incomplete = 0;
  file_.overwrite(Field::run_complete, 0, &incomplete);
  file_.note_size();
  commit();
  return state;
}

void TraceStore::abort_cut_sequences(std::int64_t num_sequences, ResumeState& state) {
  const auto reasons = file_.read_bytes(Field::sequence_finish_reason, 0, num_sequences);
  const auto aborted = file_.read_bytes(Field::sequence_aborted, 0, num_sequences);
  const std::uint8_t yes = 1;
  const auto checked = [this](std::int64_t value, std::int64_t limit, std::string_view what) {
    return checked_value(file_.path(), value, limit, what);
  };
  for (std::int64_t sequence = 0; sequence < num_sequences; ++sequence) {
    const auto at = static_cast<std::size_t>(sequence);
    const auto reason = static_cast<FinishReason>(reasons[at]);
    if (reason == FinishReason::unfinished || reason == FinishReason::interrupted) {
      file_.overwrite(Field::sequence_aborted, sequence, &yes);
    } else if (aborted[at] == 0) {
      const auto hash = file_.read_bytes(Field::sequence_prompt_hash, sequence, 1);
      PromptHash& prompt = state.finished.emplace_back();
      std::ranges::copy(hash, prompt.begin());
      const std::int64_t start =
          checked(file_.read_ints(Field::sequence_name_start, sequence, 1).front(),
                  file_.length(Axis::text_byte), "/sequences/name_start");
      const std::int64_t length =
          checked(file_.read_ints(Field::sequence_name_length, sequence, 1).front(),
                  file_.length(Axis::text_byte) - start, "/sequences/name_length");
      const auto name = file_.read_bytes(Field::sequence_bytes, start, length);
      state.finished_names.emplace_back(name.begin(), name.end());
    }
  }
}

}  // namespace blockscope
