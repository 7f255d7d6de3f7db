#include "probe/decode/committed_prefix.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include "decode_record/base/error.h"

namespace blockscope {

CommittedPrefix random_prefix(const ModelConfig& config, int64_t length, at::ScalarType dtype,
                              uint64_t seed) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  CommittedPrefix prefix;
  prefix.length = length;
  const std::vector<int64_t> shape{1, config.num_kv_heads, length, config.head_dim};
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    prefix.key.push_back(at::empty(shape, dtype).normal_(0.0, 1.0, generator));
    prefix.value.push_back(at::empty(shape, dtype).normal_(0.0, 1.0, generator));
  }
  return prefix;
}

void check_prefix(const CommittedPrefix& prefix, const ModelConfig& config, int64_t length) {
  const std::vector<int64_t> shape{1, config.num_kv_heads, length, config.head_dim};
  bool fits = prefix.length == length && std::ssize(prefix.key) == config.num_layers &&
              std::ssize(prefix.value) == config.num_layers;
  for (size_t layer = 0; fits && layer < prefix.key.size(); ++layer) {
    fits = prefix.key[layer].sizes() == shape && prefix.value[layer].sizes() == shape;
  }
  if (fits) return;
  throw Error(fmt::format(
      "prefix: expected {} positions of {} layers with {} KV heads and head_dim {}, got {} "
      "positions of {} layers. HINT: a prefix belongs to one model, prompt and block length",
      length, config.num_layers, config.num_kv_heads, config.head_dim, prefix.length,
      prefix.key.size()));
}

}  // namespace blockscope
