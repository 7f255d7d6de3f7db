// The values that `blockscope verify` measures, for text, JSON, CSV and figures.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "probe/policies/policy_table.h"
#include "probe/run/run_flags.h"
#include "probe/verify/agreement.h"
#include "probe/verify/fidelity.h"
#include "probe/verify/predicted_reads.h"

namespace blockscope {

/// FlashBlock's part of a setting: the rule and the heads that may reuse.
struct ReuseSetting {
  int64_t tau = 2;
  ReuseCount count = ReuseCount::since_read;
  ReuseRefresh refresh = ReuseRefresh::all;
  std::optional<double> gamma;          // the mask is similarity > gamma; nullopt: as in the file
  ReuseMasks reuse;                     // [ranges][L][H]
  std::optional<double> file_predicts;  // predicted by the file: saving of prefix bytes
  std::optional<double> file_error;     // predicted by the file: relative L2 where reused
  std::optional<ErrorBound> bound;      // in place of tau and count
  bool by_effect = false;               // the file ranks heads by effect, not by similarity

  ReuseRule rule() const { return {static_cast<double>(tau), count, refresh}; }
  int64_t heads() const;  // number of heads that may reuse, over all ranges and layers
};

/// A policy as it is measured.
struct PolicySetting {
  PolicyOptions policy;
  std::string label;                  // its name: policy_text, with gamma in a sweep
  std::string settings;               // a JSON object, as a trace records it
  std::optional<ReuseSetting> reuse;  // flashblock only; a sweep's masks are in no file

  bool exact() const { return policy.policy == "exact" && policy.interventions.empty(); }
};

/// Time of the passes, without the cost of measuring.
struct RunTimes {
  std::vector<double>
      attention;              // seconds in attention, denoising and commit passes, per repetition
  std::vector<double> total;  // seconds of all passes with prefill, per repetition
  int64_t block_passes = 0;   // denoising and commit passes of one repetition
};

/// Attention time per denoising step and sequence at similar context lengths, all layers.
struct ContextTime {
  double context_length = 0.0;  // mean N
  double keys_read = 0.0;       // mean external keys (with their values) read per layer and KV
                                // head; a row read to choose counts half
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

/// The results of one policy.
struct PolicyResult {
  PolicySetting setting;
  FreeRun run;
  Fidelity fidelity;  // against exact attention, replaying the reference's run; exact: empty
  /// The policy's rule applied to the replayed run; nullopt: the rule alone can't say.
  std::optional<ExternalReads> predicted;
};

/// A policy compared with the reference.
struct SettingResult : PolicyResult {
  TokenAgreement agreement;
  std::vector<Divergence> divergences;  // of the sequences whose trajectory differs
  PairedScores scores;                  // a: the reference, b: the policy
  /// Milliseconds of attention per pass, reference over policy, per repetition; above 1 is faster.
  Spread attention_speedup;
};

struct VerifyResult {
  int64_t prompts = 0;
  PolicyResult reference;               // exact, unless a pair was asked for
  std::vector<SettingResult> settings;  // the policy first, then the sweep's

  bool pair() const { return !reference.setting.exact(); }
};

}  // namespace blockscope
