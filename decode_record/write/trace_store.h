// The work of a TraceWriter's thread: turns sequences and rows into appends to a TraceFile, and
// commits. Internal to decode_record.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "decode_record/write/trace_file.h"
#include "decode_record/write/trace_writer.h"

namespace blockscope {

struct BeginItem {
  SequenceStart start;
};

struct RowItem {
  TraceRow row;
  std::int64_t previous = -1;
  std::int64_t keyframe = 0;   ///< latest keyframe at or before the row
  std::optional<Frame> state;  ///< the keyframe itself, if it belongs to this row
  SequenceDelta delta;         ///< resolved; empty if the row decided nothing
};

struct EndItem {
  std::int64_t sequence = 0;
  SequenceEnd end;
};

using Item = std::variant<BeginItem, RowItem, EndItem>;

class TraceStore {
 public:
  TraceStore(TraceFile file, const TraceMeta& meta) : meta_(meta), file_(std::move(file)) {}

  /// Throws TraceError if somebody else has cut the file since the last call.
  void write(const Item& item);

  std::int64_t num_rows() const { return file_.length(Axis::row); }
  std::int64_t num_sequences() const { return file_.length(Axis::sequence); }
  std::int64_t num_keyframes() const { return file_.length(Axis::keyframe); }

  /// Makes everything written so far survive kill -9, then records this in the file. Throws
  /// TraceError if somebody else has cut, moved or removed the file.
  void commit();
  /// Commits, marks the file as complete if `complete`, trims it and closes it.
  OwnFile close(bool complete);
  /// Call it after an exception of any call above.
  void abandon() { file_.abandon(); }
  /// Call it after reopen(): drops what was not committed and marks cut sequences as aborted.
  ResumeState recover();

 private:
  void write(const BeginItem& item);
  void write(const RowItem& item);
  void write(const EndItem& item);
  std::pair<std::int64_t, std::int32_t> append_text(const std::string& text);
  void write_step(const RowItem& item);
  void write_delta(const SequenceDelta& delta);
  void write_keyframe(const Frame& state);
  void write_arrays(const RowItem& item);
  void write_prefix(const TraceRow& row);
  void write_revocations(const TraceRow& row);
  void write_cache(const TraceRow& row);
  void fill_absent(const std::array<bool, kNumFields>& given);
  void abort_cut_sequences(std::int64_t num_sequences, ResumeState& state);

  TraceMeta meta_;
  TraceFile file_;
  std::vector<std::pair<std::int64_t, FinishReason>> ended_;  // not yet marked in the file
};

}  // namespace blockscope
