// Decodes one prompt under several policies from one prefill: their answers, reads and times.
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
#include "probe/verify/fidelity.h"

namespace blockscope {

struct StudyMethod {
  std::string name;  // "mage", "sparsed+flashblock"
  PolicyOptions policy;
  int64_t k = 0;  // its column: keys, density in percent, or tau; 0: no column
};

/// One free run. Times are those of the passes, without the prefill and the cost of measuring.
struct MethodRun {
  double score = 0.0;  // NaN: not scored
  int64_t tokens = 0;  // positions decided
  int64_t equal = 0;   // of these, equal to the first method's
  int64_t denoising_steps = 0;
  int64_t commits = 0;
  int64_t context_length = 0;    // N of the first step
  int64_t rows = 0;              // external key rows that exact attention reads in denoising steps
  int64_t rows_read = 0;         // external key rows really read
  int64_t rows_scored = 0;       // AttentionParts::rows_scored, of all KV heads
  int64_t products = 0;          // query-key products over the prefix in denoising steps
  int64_t products_skipped = 0;  // those that were not computed
  double kl = 0.0;               // sum of KL(exact || method) under replay, nats
  int64_t kl_positions = 0;      // masked positions in `kl`; 0: not measured
  int64_t estimating_steps = 0;  // denoising steps in which keys were chosen, on either thread
  double estimating_ms = 0.0;    // whole passes of these steps
  double attention_ms = 0.0;     // in denoising steps, with choosing and waiting for it
  double step_ms = 0.0;          // whole passes of denoising steps
  double commit_ms = 0.0;        // commit passes
  double choosing_ms = 0.0;      // choosing on the decoding thread
  double beside_ms = 0.0;        // choosing on the second thread
  double waited_ms = 0.0;        // part of beside_ms that decoding waited for
};
nlohmann::json to_json(const MethodRun& run);
MethodRun method_run_from_json(const nlohmann::json& json);

/// The runs of all methods, in order. Each run decodes `batch_size` sequences with this prompt. Row
/// counts are those of all sequences; steps, tokens and score are those of the first one. Without
/// `counts_reads` the row counts are 0, and nothing is observed inside the layers. Throws
/// InterruptedError if the caller's InterruptGuard saw a signal.
std::vector<MethodRun> run_methods(const LoadedModel& model, const Tokenizer* tokenizer,
                                   const DecodeOptions& options, const StudyPrompt& prompt,
                                   const std::vector<StudyMethod>& methods, int64_t batch_size = 1,
                                   bool counts_reads = true);

/// The exact run of one prompt, and its replays under methods.
class ExactReplay {
 public:
  /// Decodes `prompt` with `exact_model`; the arguments must outlive this. Throws InterruptedError.
  ExactReplay(const LoadedModel& exact_model, const DecodeOptions& options,
              const StudyPrompt& prompt);
  /// The method with `model`, which has the shape of the exact one, under the replay. Throws
  /// InterruptedError.
  Fidelity compare(const LoadedModel& model, const PolicyOptions& policy) const;

 private:
  const LoadedModel& exact_model_;
  const DecodeOptions& options_;
  DecodeRequest request_;
};

/// Sums over prompts, for means.
struct MethodTotals {
  int64_t prompts = 0;
  int64_t scored = 0;
  double score = 0.0;
  MethodRun sum;  // sums of counts and times; score and context_length are unused

  void add(const MethodRun& run);
  double accuracy() const;         // NaN: nothing was scored
  double share_equal() const;      // share of tokens equal to the first method's
  double saving() const;           // share of external key rows not read in denoising steps
  double products_saving() const;  // share of query-key products not computed in them
  double mean_kl() const;          // nats a masked position; NaN: not measured
};

}  // namespace blockscope
