// Denoising passes of a device as CUDA graphs. The steps of a block do the same work on the same
// memory; only the token ids differ. The second such step is captured. Each later one is one
// launch, instead of about ten a layer (docs/cuda.md, "Launches"). The results are bit-identical,
// and an observer that looks inside sees copies of what each launch computed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cuda/device_graph.h"
#include "probe/decode/observed_seams.h"
#include "probe/decode/shown_pass.h"
#include "probe/model/block_diffusion_model.h"

namespace blockscope {

/// A graph keeps what all layers show until its next launch, and each launch is copied. Passes that
/// show about this much are not graphs.
constexpr int64_t kMostShownBytes = int64_t{1} << 30;

class PassGraphs {
 public:
  /// `wanted`: whether the options allow graphs. There are none for a model on the CPU, without
  /// kernels, or whose layers wait for the host.
  PassGraphs(const BlockDiffusionModel& model, bool wanted);

  /// model.forward() of a pass that may be a graph: ids and positions int64 [entries, rows] on the
  /// host. `same`: what else its work depends on. Passes with equal values run the same operators
  /// over the same tensors.
  at::Tensor repeatable(const at::Tensor& ids, const at::Tensor& positions,
                        const std::vector<int64_t>& same, ObservedSeams& seams);

 private:
  at::Tensor capture(const at::Tensor& ids, const at::Tensor& positions, ObservedSeams& seams);
  int64_t shown_bytes(int64_t rows) const;

  const BlockDiffusionModel& model_;
  bool enabled_ = false;
  std::vector<int64_t> last_;           // the kind of the last repeatable pass
  at::Tensor ids_, positions_;          // [entries, rows], read by the graph
  at::Tensor hidden_;                   // written by the graph
  std::vector<ShownCall> shown_;        // the same
  std::unique_ptr<DeviceGraph> graph_;  // of passes of kind last_; null: not captured
};

}  // namespace blockscope
