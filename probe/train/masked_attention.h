// The trainer's attention: differentiable scaled dot product under a given mask. It works in chunks
// of rows. Each chunk reads only the columns that the layout of its documents lets it see.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "probe/model/forward_seams.h"
#include "probe/train/training_batch.h"

namespace blockscope {

class MaskedAttention final : public ForwardSeams {
 public:
  /// mask [S, 1, T, C], 0 or -inf, for T rows and C columns. `chunks` cover the T rows.
  MaskedAttention(const at::Tensor& mask, const std::vector<RowChunk>& chunks,
                  at::ScalarType dtype);
  at::Tensor attention(const AttentionInput& input) override;

 private:
  std::vector<RowChunk> chunks_;
  std::vector<at::Tensor> masks_;  // of every chunk: [S, 1, rows, columns]
  at::ScalarType dtype_;
};

}  // namespace blockscope
