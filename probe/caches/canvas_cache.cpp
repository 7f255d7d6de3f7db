#include "probe/caches/canvas_cache.h"

#include <ATen/ATen.h>

#include <stdexcept>

#include "probe/caches/block_caches.h"
#include "probe/caches/d2_cache.h"
#include "probe/caches/dllm_cache.h"

namespace blockscope {

at::Tensor CanvasCache::attention_block(int64_t layer, const AttentionLayer& weights,
                                        const at::Tensor& x, const RotaryRows& rotary,
                                        CanvasKeys& keys, const RowAttention& attend,
                                        LayerWork& work) {
  keys.write_keys(layer, rows_, weights.key(x, rotary));
  keys.write_values(layer, rows_, weights.value(x));
  work = {rows_, rows_, rows_};
  return weights.output(attend(weights.query(x, rotary), rows_));
}

at::Tensor CanvasCache::ffn(int64_t /*layer*/, const at::Tensor& x,
                            const std::function<at::Tensor(const at::Tensor&)>& mlp) {
  return mlp(x);
}

std::unique_ptr<CanvasCache> make_canvas_cache(const CacheOptions& options) {
  switch (options.kind) {
    case CacheKind::kNone:
      return make_no_cache();
    case CacheKind::kPrefix:
      return make_prefix_cache();
    case CacheKind::kDual:
      return make_dual_cache();
    case CacheKind::kDllm:
      return make_dllm_cache(options);
    case CacheKind::kD2:
      return make_d2_cache(options);
    case CacheKind::kCommit:
    case CacheKind::kBlockd:
    case CacheKind::kBlock:
      break;
  }
  throw std::logic_error("no cache of a bidirectional model");
}

}  // namespace blockscope
