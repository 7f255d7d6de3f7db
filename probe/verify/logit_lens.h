// Logit lens: what the model would predict if its layers ended earlier. The recorded input of each
// layer goes through the checkpoint's final norm and LM head (nostalgebraist, "interpreting GPT:
// the logit lens", 2020). Level full has these hidden states.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "analysis/pass/block_index.h"
#include "analysis/results/metric_result.h"
#include "decode_record/read/trace_reader.h"
#include "probe/model/block_diffusion_model.h"

namespace blockscope {

struct LensOptions {
  std::optional<std::vector<int64_t>> layers,
      steps;  // the model's layers; steps from 1; unset: all
  RowSelection rows;
  /// Called with the finished and all rows; may throw.
  std::function<void(int64_t done, int64_t total)> progress;
};

/// For every mask that the block decides later: the rank (1: the largest logit) and the probability
/// of its final token, by layer and step. Arrays [layer, step], means over positions:
/// `lens_probability`, `lens_rank` (mean of log2 of the rank), `lens_first` (share with rank 1).
/// With logit_shift 1 the block's first position is left out, because its predictor lies outside
/// the block. Throws TraceError below level full, UsageError for a layer that was not recorded.
MetricResult logit_lens(const TraceReader& trace, const BlockDiffusionModel& model,
                        const LensOptions& options);

}  // namespace blockscope
