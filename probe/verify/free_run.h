// One free run of some prompts under one policy: its trajectory, its reads and its times.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "probe/decode/decode_observer.h"
#include "probe/decode/decoder.h"
#include "probe/verify/predicted_reads.h"

namespace blockscope {

/// One sequence as it was decoded.
struct SequenceRun {
  std::vector<int64_t> generated;  // DecodeOutcome::generated
  std::vector<ReplayStep> steps;   // input of a replay
  std::vector<PassRow> rows;       // denoising and commit passes
};

/// Makes the request decode the tokens of a run, and end where it did.
void replay_of(const SequenceRun& run, DecodeRequest& request);

/// Attention per sequence in one pass in which every sequence denoised.
struct StepTime {
  double context_length = 0.0;  // mean N over the sequences
  double keys_read = 0.0;       // mean over sequences, layers and KV heads; ContextTime::keys_read
  double milliseconds = 0.0;
};

/// Watches a run. The times do not include the observer's own.
class FreeRunObserver : public DecodeObserver {
 public:
  FreeRunObserver(const DecodeOptions& options, const LayerSizes& shape);

  bool wants_every_prediction() const override { return false; }
  void on_attention(const AttentionView& view) override;
  void on_pass(const PassResult& result) override;

  std::map<int64_t, SequenceRun> sequences;  // by sequence of the run; `generated` is not filled
  std::vector<StepTime> steps;
  ExternalReads reads;
  int64_t attention_ns = 0;  // denoising and commit passes
  int64_t total_ns = 0;      // all passes
  int64_t block_passes = 0;
  int64_t denoising_steps = 0;
  int64_t tokens = 0;

 private:
  int64_t block_length_;
  int64_t mask_token_id_;
  PassReads pass_reads_;
  double read_before_ = 0.0;  // key rows read in all passes before this one
};

}  // namespace blockscope
