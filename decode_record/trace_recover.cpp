// Resuming: how a TraceStore brings a file left by a killed writer back to its committed state.
#include <algorithm>

#include "decode_record/trace_store.h"

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

}  // namespace

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
    const std::int64_t end = count == 0 ? 0 : file_.read_ints(field, count - 1, 1).front();
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

  const std::int64_t deltas = last(Field::delta_end, rows, Axis::delta);
  const std::int64_t insertions = last(Field::insert_end, rows, Axis::insertion);
  const std::int64_t deletions = last(Field::delete_end, rows, Axis::deletion);
  const std::int64_t elements = last(Field::keyframe_end, keyframes, Axis::keyframe_element);
  const std::int64_t prefix =
      file_.has(Field::prefix_end) ? last(Field::prefix_end, rows, Axis::prefix_element) : 0;
  std::int64_t prompt_elements = 0;
  if (sequences > 0) {
    prompt_elements =
        checked(file_.read_ints(Field::sequence_prompt_start, sequences - 1, 1).front() +
                    file_.read_ints(Field::sequence_prompt_length, sequences - 1, 1).front(),
                file_.length(Axis::prompt_element), "/sequences/prompt_start");
  }
  abort_cut_sequences(sequences, state);
  file_.truncate(Axis::row, rows);
  file_.truncate(Axis::sequence, sequences);
  file_.truncate(Axis::delta, deltas);
  file_.truncate(Axis::insertion, insertions);
  file_.truncate(Axis::deletion, deletions);
  file_.truncate(Axis::keyframe, keyframes);
  file_.truncate(Axis::keyframe_element, elements);
  file_.truncate(Axis::prompt_element, prompt_elements);
  if (file_.has(Field::prefix_end)) file_.truncate(Axis::prefix_element, prefix);
  // Bytes of texts that were not committed stay, unused: nothing points to them.
  file_.truncate(Axis::text_byte, file_.length(Axis::text_byte));
  const std::uint8_t incomplete = 0;
  file_.overwrite(Field::run_complete, 0, &incomplete);
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
