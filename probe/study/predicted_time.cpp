#include "probe/study/predicted_time.h"

#include <algorithm>
#include <cmath>

namespace blockscope {
namespace {

constexpr double kFloat32 = 4.0;  // bytes

/// The parameters of a model on one device that a pass reads.
struct Weights {
  double attention = 0.0;       // q, k, v and o of one layer
  double mlp_read = 0.0;        // of all layers, with the experts that the rows choose
  double mlp_multiplied = 0.0;  // of all layers, per row
  double mlp_stored = 0.0;      // of all layers
  double mlp_kernels = 0.0;     // products of all layers
  double inner = 0.0;           // widths between the products of all layers, per row
  double head = 0.0;
};

Weights weights_of(const PredictedRun& run) {
  const ModelConfig& config = run.config;
  const auto parts = static_cast<double>(run.devices);
  const auto hidden = static_cast<double>(config.hidden_size);
  const auto heads = static_cast<double>(config.num_heads * config.head_dim);
  const auto kv_heads = static_cast<double>(config.num_kv_heads * config.head_dim);
  Weights weights;
  weights.attention = hidden * (2.0 * heads + 2.0 * kv_heads) / parts;
  weights.head = hidden * static_cast<double>(config.vocab_size) / parts;
  const auto rows = static_cast<double>(run.batch * run.block_length);
  const auto add = [&](double width, double read, double per_row, double stored, double kernels) {
    const double one = 3.0 * hidden * width / parts;  // gate, up, down
    weights.mlp_read += read * one;
    weights.mlp_multiplied += per_row * one;
    weights.mlp_stored += stored * one;
    weights.mlp_kernels += kernels;
    weights.inner += per_row * width / parts;
  };
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (!config.moe || !config.moe->sparse[static_cast<size_t>(layer)]) {
      add(static_cast<double>(config.intermediate_size), 1, 1, 1, 2);
      continue;
    }
    const auto experts = static_cast<double>(config.moe->num_experts);
    const auto chosen = static_cast<double>(config.moe->experts_per_token);
    // Expected number of experts that at least one row chooses, if rows choose evenly.
    const double used = experts * (1.0 - std::pow(1.0 - chosen / experts, rows));
    add(static_cast<double>(config.moe->intermediate_size), used, chosen, experts, 2.0 * used);
    if (config.moe->shared_size > 0) {
      add(static_cast<double>(config.moe->shared_size), 1, 1, 1, 2);
    }
  }
  return weights;
}

double element_bytes(const PredictedRun& run) { return run.dtype == "float32" ? 4.0 : 2.0; }

/// The keys and values of a position in one layer, on one device, in elements.
double kv_elements(const PredictedRun& run) {
  return 2.0 * static_cast<double>(run.config.num_kv_heads * run.config.head_dim) /
         static_cast<double>(run.devices);
}

class Roofline {
 public:
  Roofline(const PredictedRun& run, double pass_bytes)
      : device_(run.device),
        bandwidth_(pass_bytes <= device_.cache_bytes
                       ? device_.cache_bandwidth
                       : device_.memory_bandwidth * device_.bandwidth_efficiency),
        rate_(device_.flops.at(run.dtype)) {}
  double moved(double bytes) const { return bytes / bandwidth_; }
  double product(double bytes, double flop) const {
    return std::max(moved(bytes), flop / (rate_ * device_.product_efficiency));
  }
  double attention(double bytes, double flop) const {
    return std::max(moved(bytes), flop / (rate_ * device_.attention_efficiency));
  }
  /// A ring sums `bytes` over `devices` devices.
  double summed(double bytes, double devices) const {
    if (devices < 2.0) return 0.0;
    return 2.0 * (devices - 1.0) / devices * bytes / device_.link_bandwidth + device_.link_seconds;
  }

 private:
  const DeviceNumbers& device_;
  double bandwidth_;
  double rate_;
};

}  // namespace

PassTime predicted_pass(const PredictedRun& run, const PassWork& work) {
  const ModelConfig& config = run.config;
  const Weights weights = weights_of(run);
  const auto parts = static_cast<double>(run.devices);
  const auto layers = static_cast<double>(config.num_layers);
  const auto exact_layers = static_cast<double>(std::min(work.exact_layers, config.num_layers));
  const auto hidden = static_cast<double>(config.hidden_size);
  const double query = static_cast<double>(config.num_heads * config.head_dim) / parts;
  const double kv = kv_elements(run);
  const double element = element_bytes(run);
  const auto batch = static_cast<double>(run.batch);
  const auto block = static_cast<double>(run.block_length);
  const double rows = batch * block;
  const double head_rows = batch * work.head_rows;

  const double all_weights =
      layers * weights.attention + weights.mlp_read + (work.head_rows > 0.0 ? weights.head : 0.0);
  const double cached =
      batch * kv * (exact_layers * work.read_exact_layers + (layers - exact_layers) * work.read);
  const Roofline roofline(run, element * (all_weights + cached));

  PassTime time;
  // q, k and v; o; gate and up; down.
  const double qkv = weights.attention - hidden * query;
  time.products =
      layers * (roofline.product(element * (qkv + rows * (hidden + query + kv)), 2.0 * rows * qkv) +
                roofline.product(element * (hidden * query + rows * (hidden + query)),
                                 2.0 * rows * hidden * query));
  const double mlp_rows = 2.0 * layers * hidden + 3.0 * weights.inner;
  time.products += roofline.product(element * (weights.mlp_read + rows * mlp_rows),
                                    2.0 * rows * weights.mlp_multiplied);

  const double kept =
      work.pair ? kFloat32 * rows * (query + query / static_cast<double>(config.head_dim)) : 0.0;
  const auto layer_attention = [&](double read, bool chooses) {
    const double scored = chooses ? work.scored : 0.0;
    const double residual = chooses ? work.residual : 0.0;
    const double bytes =
        element * (batch * kv * (read + block + scored / 2.0 + residual) + 2.0 * rows * query);
    const double flop = rows * query * (4.0 * (read + block + residual) + 2.0 * scored);
    return roofline.attention(bytes + kept, flop);
  };
  time.attention = exact_layers * layer_attention(work.read_exact_layers, false) +
                   (layers - exact_layers) * layer_attention(work.read, true);

  double kernels = 1.0 + 5.0 * layers + layers * 2.0 + weights.mlp_kernels;
  if (work.scored > 0.0) kernels += 2.0 * (layers - exact_layers);
  if (work.head_rows > 0.0) {
    kernels += 2.0;
    const auto vocabulary = static_cast<double>(config.vocab_size) / parts;
    time.head = roofline.product(element * (weights.head + head_rows * (hidden + vocabulary)),
                                 2.0 * head_rows * weights.head) +
                roofline.moved(element * head_rows * vocabulary);
  }
  // Two norms with sums; norm, rotation and storing of q, k, v; the activation.
  time.rest = layers * roofline.moved(element * rows * (8.0 * hidden + 2.0 * (query + kv))) +
              roofline.moved(element * rows * 3.0 * weights.inner) +
              kernels * run.device.launch_seconds +
              2.0 * layers * roofline.summed(element * rows * hidden, parts);
  return time;
}

double predicted_memory(const PredictedRun& run) {
  const ModelConfig& config = run.config;
  const Weights weights = weights_of(run);
  const auto parts = static_cast<double>(run.devices);
  const auto layers = static_cast<double>(config.num_layers);
  const auto rows = static_cast<double>(run.batch * run.block_length);
  const double embeddings = weights.head * (config.tie_word_embeddings ? 1.0 : 2.0);
  const double cache = static_cast<double>(run.batch) * layers * kv_elements(run) *
                       (run.context + static_cast<double>(run.block_length));
  const double logits = rows * static_cast<double>(config.vocab_size) / parts;
  const double pair = kFloat32 * layers * rows *
                      static_cast<double>(config.num_heads * (config.head_dim + 1)) / parts;
  return element_bytes(run) *
             (layers * weights.attention + weights.mlp_stored + embeddings + cache + logits) +
         pair;
}

int64_t predicted_reading_steps(int64_t block_length, int64_t steps, int64_t tau) {
  int64_t reads = 0;
  int64_t decided = 0;  // since the last pass that read
  for (int64_t step = 0; step < steps; ++step) {
    if (step == 0 || decided >= tau) {
      ++reads;
      decided = 0;
    }
    decided += block_length / steps + (step < block_length % steps ? 1 : 0);
  }
  return reads;
}

}  // namespace blockscope
