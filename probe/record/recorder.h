// Turns what a decoder shows into rows of a trace. The recorder never changes a token. It copies
// views, converted to the file's type, and hands the copies to the TraceWriter's thread. Statistics
// are computed where the values are. A device's results come to the host together, at the end of a
// pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "decode_record/frames/frame_delta.h"
#include "decode_record/schema/reuse_rule.h"
#include "decode_record/write/trace_writer.h"
#include "kernels/step_statistics.h"
#include "probe/decode/decode_observer.h"
#include "probe/record/attention_reads.h"
#include "probe/record/recorder_options.h"

namespace blockscope {

/// Called by the decoding thread or by a LateRecorder. A device's tensors are read on the current
/// stream.
class Recorder : public DecodeObserver {
 public:
  Recorder(RecorderOptions options, TraceWriter& writer);

  /// Must be called before a sequence's first pass: gives the sequence of the run its index in the
  /// trace. `prompt_length`: traces count positions from the end of the prompt. Without this call a
  /// sequence is not recorded.
  /// `regions`: of the prompt's tokens, as PromptRegions::of_token.
  void begin_sequence(int64_t sequence, int64_t trace_sequence, int64_t prompt_length,
                      std::vector<uint8_t> regions = {});

  /// What was decided so far, whether recorded or not.
  struct Counters {
    int64_t denoising_rows = 0;
    int64_t tokens = 0;  // decided and not taken back
  };
  const Counters& counters() const { return counters_; }

  bool wants_every_prediction() const override { return options_.every_prediction; }
  bool wants_logits() const override;
  bool looks_inside(const PassContext& context) const override;
  bool wants_weights(const PassContext& context, int64_t layer) const override;
  std::vector<std::vector<int64_t>> key_ranges(const PassContext& context,
                                               int64_t layer) const override;
  void on_attention(const AttentionView& view) override;
  void on_hidden(const PassContext& context, int64_t layer, const at::Tensor& hidden) override;
  void on_router(const PassContext& context, int64_t layer, const RouterChoice& choice) override;
  void on_staleness(const PassContext& context, const Staleness& of_layers) override;
  void on_committed_keys(const CommittedKeys& keys) override;
  void on_logits(const PassContext& context, const std::vector<int64_t>& slots,
                 const at::Tensor& logits) override;
  void on_masked_logits(const PassContext& context, const std::vector<int64_t>& slots,
                        const std::vector<std::vector<bool>>& predicted,
                        const at::Tensor& logits) override;
  void on_pass(const PassResult& result) override;
  void on_remove(int64_t slot) override;

  // What the recorder reads, for callers that copy tensors. The answers change only with
  // begin_sequence. The functions may be called while another thread records.
  bool reads_layer(const PassContext& context, int64_t layer) const;  // attention or input
  bool reads_logits(const PassContext& context) const;
  bool reads_router(const PassContext& context, int64_t layer) const;
  bool reads_keys(const CommittedKeys& keys) const;

  /// The two halves of on_attention, if reads_layer(). The first runs on the tensors' device, the
  /// second on the host.
  AttentionReads reads_of(const AttentionView& view) const;
  void record(const PassContext& context, const AttentionReads& reads);

 private:
  struct TracedSequence {
    int64_t trace_sequence = 0;
    int64_t prompt_length = 0;
    std::vector<uint8_t> regions;  // [prompt_length], or empty
    Frame canvas{};                // steps and noise so far, in a run with canvases
  };
  /// The values with which later steps of a block are compared, per recorded layer.
  struct LayerHistory {
    int64_t sequence = -1, block = -1;                    // the block of these steps
    int64_t last_step = 0;                                // step of last_external, last_internal
    HeadAttention last_external, last_internal;           // the previous step's exact values
    std::array<HeadAttention, kReuseTaus.size()> source;  // the cached pair, by each tau's rule
    std::array<KeptCounter, kReuseTaus.size()> kept{
        KeptCounter{{kReuseTaus[0]}}, KeptCounter{{kReuseTaus[1]}}, KeptCounter{{kReuseTaus[2]}},
        KeptCounter{{kReuseTaus[3]}}};
    FirstRows first_query;           // [H, B, D] of step 1
    FirstRows first_hidden;          // [1, B, hidden_size] of step 1
    std::vector<int32_t> first_set;  // [kv_heads, k] of step 1, each ascending
  };
  struct Slot;
  using HostTensors = std::vector<at::Tensor>;
  /// Results that are on a device, and what to do with them on the host.
  struct Pending {
    HostTensors results;
    std::function<void(const HostTensors&)> put;
  };
  /// One slot of the batch: the block's history, and the current row.
  struct Slot {
    std::vector<LayerHistory> history;           // by recorded layer
    FirstPrediction first_prediction;            // prediction of step 1
    std::map<Field, std::vector<float>> floats;  // whole-row datasets, [L, ...]
    std::map<Field, std::vector<int32_t>> ints;
    std::map<Field, std::vector<uint8_t>> bytes;
    std::vector<ArraySlice> arrays;  // per-layer datasets, already in file type
    at::Tensor map;                  // [map layers, map heads, B, positions] float16
    std::vector<Pending> pending;
    int64_t pending_bytes = 0;
    /// What queued work of a device reads. The history may already have let go of it.
    std::vector<LayerStep> in_use;
  };

  bool at_least(RecordLevel level) const { return options_.meta.level >= level; }
  bool follows(const PassContext& context) const;  // reads a denoising pass of some sequence
  bool traced(const SequencePass& pass) const { return traced_.count(pass.sequence) > 0; }
  bool records(const SequencePass& pass) const;
  bool records_map(const SequencePass& pass) const;
  int64_t layer_index(int64_t layer) const;  // index among the recorded layers, -1: none
  Slot& slot_at(size_t index);
  /// The history is empty at a layer's first pass of a block.
  static LayerHistory& history_of(Slot& slot, int64_t layer_index, const SequencePass& pass);

  /// Positions of external keys at which another distance or region begins, ascending; the last
  /// one is the number of external keys.
  std::vector<int64_t> key_range_ends(const SequencePass& pass) const;
  /// External keys before the block; the others of a bidirectional model come after it.
  static int64_t keys_before(const TraceMeta& meta, const SequencePass& pass);
  TopKSets sets_of(const AttentionView& view) const;
  at::Tensor map_of(const AttentionView& view) const;
  void record_map(const SequencePass& pass, const AttentionReads& reads, size_t slot);
  void put_map(const SequencePass& pass, size_t slot, int64_t layer, int64_t internal,
               const at::Tensor& from);
  void read_norms(const AttentionView& view, AttentionReads& reads) const;
  void summarise(const SequencePass& pass, const AttentionReads& reads, size_t slot,
                 int64_t layer_index);
  /// Compare `step` with the history, then update the history.
  static void compare_queries(const SequencePass& pass, const at::Tensor& query, int64_t row,
                              LayerHistory& history, LayerStep& step);
  static void compare_steps(const SequencePass& pass, LayerHistory& history, LayerStep& step);
  void put_statistics(const LayerStatistics& statistics, size_t slot, int64_t layer_index);
  /// sums [tau, H, ...]: the sums of every recorded head.
  void put_sums(size_t slot, Field field, int64_t layer_index, const at::Tensor& sums);
  void record_spread(const SequencePass& pass, const AttentionReads& reads, size_t slot,
                     int64_t layer_index);
  void put_spread(const SequencePass& pass, size_t slot, int64_t layer,
                  const std::vector<int64_t>& ends, const HostTensors& weights);
  void record_selection(const AttentionReads& reads, size_t slot, int64_t layer_index);
  void record_shadow(const AttentionReads& reads, size_t slot, int64_t layer_index);
  bool wants_sets(const PassContext& context) const;
  void record_sets(const PassContext& context, const AttentionReads& reads);
  void put_sets(const SequencePass& pass, size_t slot, int64_t layer, const HostTensors& sets);
  void record_recall(const SequencePass& pass, Slot& slot, LayerHistory& history, int64_t layer,
                     const std::vector<int32_t>& index);
  void record_arrays(const AttentionReads& reads, size_t slot, int64_t layer_index);

  void compare_prediction(size_t slot, const SequencePass& pass, const PredictionRows& rows);
  /// Calls put(results on the host): at once if they are there, else when the slot's results are
  /// copied. `put` may refer to the pass. Undefined results stay undefined.
  void when_on_host(size_t slot, HostTensors results, std::function<void(const HostTensors&)> put);
  /// Copies the slot's results to the host, which waits for the slot's queued work, and puts them.
  static void put_pending(Slot& slot);
  void put_floats(Slot& slot, Field field, int64_t layer_index, const float* values, size_t count);
  /// values [H, ...] float32 of any device; undefined: nothing is put.
  void put_heads(size_t slot, Field field, int64_t layer_index, const at::Tensor& values);
  /// rows [S, H, ...]; entry `row` is put.
  void put_head_rows(size_t slot, Field field, int64_t layer_index, const at::Tensor& rows,
                     int64_t row);
  void put_ints(Slot& slot, Field field, int64_t layer_index, const std::vector<int32_t>& values);
  HeadShape head_shape(int64_t layer) const;
  /// x [S, heads, ..., D] with NaN (-1 for whole numbers) up to the file's `heads` and channels,
  /// which a layer of ragged ones may not fill. `channels`: 0 if the last axis is no channel.
  at::Tensor padded(const at::Tensor& x, int64_t heads, int64_t channels) const;
  at::Tensor padded_heads(const at::Tensor& x) const;     // queries and outputs
  at::Tensor padded_kv_heads(const at::Tensor& x) const;  // keys and values
  at::Tensor of_all_kv_heads(const at::Tensor& x) const;  // without channels
  at::ScalarType array_type() const {
    return options_.meta.array_type == ArrayType::bf16 ? at::kBFloat16 : at::kFloat;
  }
  /// The recorded heads of x[row] as [heads, ...] in the file's type, put among the slot's arrays.
  void put_array(size_t slot, Field field, int64_t layer_index, const at::Tensor& x, int64_t row,
                 const std::vector<int64_t>& heads);
  at::Tensor recorded_heads(const at::Tensor& rows) const;     // [H, ...] -> [heads, ...]
  at::Tensor recorded_kv_heads(const at::Tensor& rows) const;  // [K, ...] -> [kv_heads, ...]
  void add_prediction(const SequencePass& pass, const StepDecision& decision, TraceRow& row) const;
  int64_t frame_origin(const SequencePass& pass) const;  // frame position of the block's start
  FrameDelta frame_delta(const SequencePass& pass, const StepDecision& decision) const;
  FrameDelta canvas_delta(const SequencePass& pass, const StepDecision& decision);
  FrameDelta first_token_delta(const SequencePass& pass, const PassResult& result,
                               const NextToken& next) const;
  void add_revocations(const SequencePass& pass, const StepDecision& decision, TraceRow& row) const;
  static void add_verdict(const DraftVerdict& verdict, TraceRow& row);
  void add_kl(const StepDecision& decision, TraceRow& row) const;
  void finish_slot(Slot& slot, TraceRow& row);
  TraceRow row_of(const SequencePass& pass, const PassResult& result) const;  // scalars only
  void take_prefix(const SequencePass& pass, TraceRow& row);
  void write_fused_commit(const PassResult& result, const SequencePass& commit);

  RecorderOptions options_;
  TraceWriter& writer_;
  std::map<int64_t, TracedSequence> traced_;  // by sequence of the run
  std::vector<int64_t> layer_indices_;        // model layer -> recorded layer or -1
  at::Tensor heads_, kv_heads_;               // recorded heads; undefined: all
  std::vector<Slot> slots_;
  Counters counters_;
  /// Keys that the current pass stored, positions [start, start + length).
  struct StoredKeys {
    int64_t start = 0, length = 0;
    std::vector<ArraySlice> slices;
  };
  std::map<int64_t, StoredKeys> prefix_;  // by sequence
};

}  // namespace blockscope
