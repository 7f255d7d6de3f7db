#include "probe/decode/committed_prefix.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <algorithm>

#include "decode_record/base/error.h"
#include "probe/decode/kv_cache.h"

namespace blockscope {
namespace {

/// The keys of a prefix of `length` positions that a layer holds: [1, K, held, D].
std::vector<int64_t> key_shape(const ModelConfig& config, int64_t layer, int64_t length) {
  const LayerShape shape = config.layer(layer);
  const int64_t held = shape.window == 0 ? length : std::min(length, shape.window - 1);
  return {1, shape.num_kv_heads, held, shape.head_dim};
}

}  // namespace

CommittedPrefix random_prefix(const ModelConfig& config, int64_t length, at::ScalarType dtype,
                              uint64_t seed) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  CommittedPrefix prefix;
  prefix.length = length;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const std::vector<int64_t> shape = key_shape(config, layer, length);
    prefix.key.push_back(at::empty(shape, dtype).normal_(0.0, 1.0, generator));
    prefix.value.push_back(at::empty(shape, dtype).normal_(0.0, 1.0, generator));
  }
  return prefix;
}

void check_prefix(const CommittedPrefix& prefix, const ModelConfig& config, int64_t length) {
  bool fits = prefix.length == length && std::ssize(prefix.key) == config.num_layers &&
              std::ssize(prefix.value) == config.num_layers;
  for (size_t layer = 0; fits && layer < prefix.key.size(); ++layer) {
    const std::vector<int64_t> shape = key_shape(config, static_cast<int64_t>(layer), length);
    fits = prefix.key[layer].sizes() == shape && prefix.value[layer].sizes() == shape;
  }
  if (fits) return;
  throw Error(fmt::format(
      "prefix: expected {} positions of {} layers with {} KV heads and head_dim {}, got {} "
      "positions of {} layers. HINT: a prefix belongs to one model, prompt and block length",
      length, config.num_layers, config.num_kv_heads, config.head_dim, prefix.length,
      prefix.key.size()));
}

void load_prefix(const CommittedPrefix& prefix, const ModelConfig& config, int64_t slot,
                 int64_t length, KvCache& cache) {
  check_prefix(prefix, config, length);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const size_t index = static_cast<size_t>(layer);
    cache.store(layer, slot, prefix.key[index], prefix.value[index]);
  }
  cache.restore(slot, length);
}

CommittedPrefix copied_prefix(const KvCache& cache) {
  CommittedPrefix prefix;
  prefix.length = cache.length(0);
  for (int64_t layer = 0; layer < cache.num_layers(); ++layer) {
    prefix.key.push_back(cache.key(layer).clone());
    prefix.value.push_back(cache.value(layer).clone());
  }
  return prefix;
}

}  // namespace blockscope
