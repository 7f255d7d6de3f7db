#include "probe/caches/dllm_cache.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "probe/model/device.h"

namespace blockscope {
namespace {

std::vector<int64_t> range(int64_t begin, int64_t end) {
  std::vector<int64_t> positions(static_cast<size_t>(end - begin));
  std::iota(positions.begin(), positions.end(), begin);
  return positions;
}

class DllmCache : public CanvasCache {
 public:
  explicit DllmCache(const CacheOptions& options) : options_(options) {}

  std::vector<int64_t> rows(const CanvasState& state) override {
    const int64_t t = state.run_step - 1;
    prompt_due_ = t % options_.prompt_interval == 0;
    answer_due_ = t % options_.answer_interval == 0;
    prompt_length_ = state.prompt_length;
    rows_ = range(0, state.length);
    return rows_;
  }

  bool keeps_outputs() const override { return true; }

  at::Tensor attention_block(int64_t layer, const AttentionLayer& weights, const at::Tensor& x,
                             const RotaryRows& rotary, CanvasKeys& keys, const RowAttention& attend,
                             const at::Tensor* /*needed*/, LayerWork& work) override {
    const bool prompt = prompt_due_ || layer == 0;
    const bool answer = answer_due_ || layer == 0;
    const auto answer_rows = range(prompt_length_, x.size(1));
    at::Tensor values;  // of the answer
    computed_ = prompt ? range(0, prompt_length_) : std::vector<int64_t>();
    work.values = computed_;
    if (answer || options_.transfer_ratio > 0.0) {
      values = weights.value(x.narrow(1, prompt_length_, x.size(1) - prompt_length_));
      const std::vector<int64_t> chosen =
          answer ? answer_rows : most_changed(keys.value_rows(layer, answer_rows), values);
      computed_.insert(computed_.end(), chosen.begin(), chosen.end());
      work.values.insert(work.values.end(), answer_rows.begin(), answer_rows.end());
    }
    if (prompt) {
      keys.write_values(layer, range(0, prompt_length_),
                        weights.value(x.narrow(1, 0, prompt_length_)));
    }
    if (values.defined()) keys.write_values(layer, answer_rows, values);
    work.queries = work.keys = computed_;
    at::Tensor& kept = stored(attention_, layer, x);
    if (computed_.empty()) return kept;
    const at::Tensor index = index_on(computed_, x.device());
    const at::Tensor chosen = x.index_select(1, index);
    const RotaryRows turned = rotary.rows(index);
    keys.write_keys(layer, computed_, weights.key(chosen, turned));
    kept.index_copy_(1, index, weights.output(attend(weights.query(chosen, turned), computed_)));
    return kept;
  }

  at::Tensor ffn(int64_t layer, const at::Tensor& x,
                 const std::function<at::Tensor(const at::Tensor&)>& mlp) override {
    at::Tensor& kept = stored(ffn_, layer, x);
    if (computed_.empty()) return kept;
    const at::Tensor index = index_on(computed_, x.device());
    return kept.index_copy_(1, index, mlp(x.index_select(1, index)));
  }

 private:
  /// Positions of the answer rows whose value turned farthest; values [1, K, R, D], ascending.
  std::vector<int64_t> most_changed(const at::Tensor& before, const at::Tensor& now) const {
    const auto flat = [](const at::Tensor& values) {
      return values.select(0, 0).transpose(0, 1).flatten(1).to(at::kFloat);  // [R, K * D]
    };
    const at::Tensor cosine = on_host(at::cosine_similarity(flat(now), flat(before), -1));
    const auto count =
        static_cast<int64_t>(static_cast<double>(cosine.size(0)) * options_.transfer_ratio);
    std::vector<int64_t> order = range(0, cosine.size(0));
    const float* value = cosine.const_data_ptr<float>();
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return value[a] < value[b]; });
    order.resize(static_cast<size_t>(count));
    std::sort(order.begin(), order.end());
    for (int64_t& row : order) row += prompt_length_;
    return order;
  }

  static at::Tensor& stored(std::vector<at::Tensor>& kept, int64_t layer, const at::Tensor& x) {
    if (std::ssize(kept) <= layer) kept.push_back(at::zeros_like(x));
    return kept[static_cast<size_t>(layer)];
  }

  CacheOptions options_;
  bool prompt_due_ = true;
  bool answer_due_ = true;
  int64_t prompt_length_ = 0;
  std::vector<int64_t> computed_;            // of the current layer
  std::vector<at::Tensor> attention_, ffn_;  // by layer [1, L, hidden_size]: outputs of the rows
};

}  // namespace

std::unique_ptr<CanvasCache> make_dllm_cache(const CacheOptions& options) {
  return std::make_unique<DllmCache>(options);
}

}  // namespace blockscope
