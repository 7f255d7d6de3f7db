// One prompt decoded under several policies from one prefill: what each answered, read and took.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "probe/decode/decoder.h"
#include "probe/policies/policy_table.h"
#include "probe/run/run_flags.h"
#include "probe/study/study_prompts.h"

namespace blockscope {

struct StudyMethod {
  std::string name;  // "mage", "sparsed+flashblock"
  PolicyOptions policy;
  int64_t k = 0;  // the column it belongs to: keys, density in percent, tau; 0: has none
};

/// One free run. Times are of the passes alone, without prefill and without what measuring costs.
struct MethodRun {
  double score = 0.0;  // NaN: not scored
  int64_t tokens = 0;  // positions decided
  int64_t equal = 0;   // of these, as the first method decided them
  int64_t denoising_steps = 0;
  int64_t commits = 0;
  int64_t context_length = 0;    // N of the first step
  int64_t rows = 0;              // external key rows that exact attention reads in denoising steps
  int64_t rows_read = 0;         // those read
  int64_t rows_scored = 0;       // AttentionParts::rows_scored, of all KV heads
  int64_t estimating_steps = 0;  // denoising steps in which keys were chosen, on either thread
  double estimating_ms = 0.0;    // of these steps, whole passes
  double attention_ms = 0.0;  // of denoising steps, choosing within it and waiting for it included
  double step_ms = 0.0;       // of denoising steps, whole passes
  double commit_ms = 0.0;     // of commit passes
  double choosing_ms = 0.0;   // on the decoding thread
  double beside_ms = 0.0;     // on the second thread
  double waited_ms = 0.0;     // of it, waited for
};
nlohmann::json to_json(const MethodRun& run);
MethodRun method_run_from_json(const nlohmann::json& json);

/// The runs of all methods, in order, of `batch_size` sequences with this prompt at a time: counts
/// of rows are those of all, counts of steps, tokens and the score those of the first. Without
/// `counts_reads` the counts of rows are 0, and nobody looks inside the layers. Throws
/// InterruptedError where the caller's InterruptGuard saw a signal.
std::vector<MethodRun> run_methods(const LoadedModel& model, const Tokenizer* tokenizer,
                                   const DecodeOptions& options, const StudyPrompt& prompt,
                                   const std::vector<StudyMethod>& methods, int64_t batch_size = 1,
                                   bool counts_reads = true);

/// Sums over prompts, for means.
struct MethodTotals {
  int64_t prompts = 0;
  int64_t scored = 0;
  double score = 0.0;
  MethodRun sum;  // of counts and times; score, context_length unused

  void add(const MethodRun& run);
  double accuracy() const;     // NaN: nothing was scored
  double share_equal() const;  // of the first method's tokens
  double saving() const;       // share of external key rows not read in denoising steps
};

}  // namespace blockscope
