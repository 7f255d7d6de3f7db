// Denoising passes of a device as CUDA graphs. The steps of a block do the same work on the same
// memory; only the token ids differ. The second such step is captured. Each later one is one
// launch, instead of about ten a layer (docs/cuda.md, "Launches"). The results are bit-identical.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cuda/device_graph.h"
#include "probe/decode/pass_plan.h"
#include "probe/model/block_diffusion_model.h"
#include "probe/model/forward_seams.h"

namespace blockscope {

class PassGraphs {
 public:
  /// `wanted`: whether the options allow graphs. There are none for a model on the CPU, without
  /// kernels, or with experts, because the host waits for their router.
  PassGraphs(const BlockDiffusionModel& model, bool wanted);

  /// model.forward() of the plan's rows. `same`: what else the pass's work depends on, apart from
  /// rows and positions. Passes with equal values run the same operators over the same tensors.
  at::Tensor repeatable(const PassPlan& plan, const std::vector<int64_t>& same,
                        ForwardSeams& seams);
  /// The same for a pass that must not be a graph. A graph of earlier passes stays.
  at::Tensor single(const PassPlan& plan, ForwardSeams& seams);

 private:
  at::Tensor capture(const PassPlan& plan, ForwardSeams& seams);

  const BlockDiffusionModel& model_;
  bool enabled_ = false;
  std::vector<int64_t> last_;           // the kind of the last repeatable pass
  at::Tensor ids_, positions_;          // [entries, rows], read by the graph
  at::Tensor hidden_;                   // written by the graph
  std::unique_ptr<DeviceGraph> graph_;  // of passes of kind last_; null: not captured
};

}  // namespace blockscope
