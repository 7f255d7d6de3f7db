#include "probe/caches/canvas_cache.h"

#include <ATen/ATen.h>

#include "probe/model/device.h"

namespace blockscope {

at::Tensor CanvasCache::attention_block(int64_t layer, const AttentionLayer& weights,
                                        const at::Tensor& x, const RotaryRows& rotary,
                                        CanvasKeys& keys, const RowAttention& attend,
                                        const at::Tensor* needed, LayerWork& work) {
  AttentionLayer::Projections made;
  if (needed == nullptr) {
    made = weights.project(x, rotary);
  } else {
    made = {weights.query(x.index_select(1, kept_on(*needed, x.device())), rotary.rows(*needed)),
            weights.key(x, rotary), weights.value(x)};
  }
  keys.write_keys(layer, rows_, made.k);
  keys.write_values(layer, rows_, made.v);
  work = {rows_, rows_, rows_};
  return weights.output(attend(made.q, {positions_of(needed)}));
}

std::vector<int64_t> CanvasCache::positions_of(const at::Tensor* needed) const {
  if (needed == nullptr) return rows_;
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < needed->numel(); ++i) {
    positions.push_back(rows_[static_cast<size_t>(needed->const_data_ptr<int64_t>()[i])]);
  }
  return positions;
}

at::Tensor CanvasCache::ffn(int64_t /*layer*/, const at::Tensor& x,
                            const std::function<at::Tensor(const at::Tensor&)>& mlp) {
  return mlp(x);
}

}  // namespace blockscope
