// What `blockscope verify` measures: plain values, for the text, JSON, CSV and figures.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "probe/verify/agreement.h"
#include "probe/verify/fidelity.h"

namespace blockscope {

/// One way to reuse: FlashBlock's tau and the heads that may.
struct ReuseSetting {
  int64_t tau = 2;
  std::optional<double> gamma;          // the mask is similarity > gamma; nullopt: as in the file
  ReuseMask reuse;                      // [L][H]
  std::optional<double> file_predicts;  // saving of prefix bytes the calibration file predicts
  std::optional<double> file_error;     // relative L2 where reused that it predicts

  int64_t heads() const;  // that may reuse, over all layers
};

/// Time of the passes, without what measuring costs.
struct RunTimes {
  std::vector<double>
      attention;              // seconds in attention, denoising and commit passes, per repetition
  std::vector<double> total;  // seconds of all passes with prefill, per repetition
  int64_t block_passes = 0;   // denoising and commit passes of one repetition
};

/// Attention time per denoising step and sequence at similar context lengths, all layers.
struct ContextTime {
  double context_length = 0.0;  // mean N
  double keys_read = 0.0;       // mean external keys read per layer and KV head
  Spread milliseconds;
  int64_t steps = 0;
};

/// One policy, free-running.
struct FreeRun {
  std::vector<double> scores;  // per prompt; NaN: not scored
  int64_t denoising_steps = 0;
  int64_t tokens = 0;  // transferred
  RunTimes times;
  std::vector<ContextTime> context_times;
  ExternalReads reads;
};

struct SettingResult {
  ReuseSetting setting;
  FreeRun run;
  TokenAgreement agreement;
  std::vector<Divergence> divergences;  // of the sequences whose trajectory differs
  PairedScores scores;                  // dense, then reuse
  Fidelity fidelity;                    // under replay of the dense run
  ExternalReads predicted;              // the rule applied to the dense run
  /// Milliseconds of attention per pass, dense over reuse, per repetition: above 1 is faster.
  Spread attention_speedup;
};

struct VerifyResult {
  int64_t prompts = 0;
  FreeRun dense;
  std::vector<SettingResult> settings;  // the file's own first, then the sweep's
};

}  // namespace blockscope
