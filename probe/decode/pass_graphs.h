// Denoising passes of a device as CUDA graphs. The steps of a block do the same work on the same
// memory, but for the token ids: the second of them is captured, the others are one launch each
// instead of some ten a layer (docs/cuda.md, "Launches"). Bits are those of the pass itself.
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
  /// `wanted`: by the options. A model on the CPU, without kernels, or with experts (whose router
  /// the host waits for) has none.
  PassGraphs(const BlockDiffusionModel& model, bool wanted);

  /// model.forward() of the plan's rows. `same`: what the pass's work depends on besides the plan's
  /// rows and positions; two passes of one value do the same over the same tensors.
  at::Tensor repeatable(const PassPlan& plan, const std::vector<int64_t>& same,
                        ForwardSeams& seams);
  /// The same of a pass that may be no graph, after which other passes do not do the same any more.
  at::Tensor single(const PassPlan& plan, ForwardSeams& seams);

 private:
  at::Tensor capture(const PassPlan& plan, ForwardSeams& seams);

  const BlockDiffusionModel& model_;
  bool enabled_ = false;
  std::vector<int64_t> last_;           // what the last pass was; empty: one that is not repeated
  at::Tensor ids_, positions_;          // [entries, rows], what the graph reads
  at::Tensor hidden_;                   // what it leaves behind
  std::unique_ptr<DeviceGraph> graph_;  // of passes as the last one; null: not captured
};

}  // namespace blockscope
