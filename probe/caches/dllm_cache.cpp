#include "probe/caches/dllm_cache.h"

#include <ATen/ATen.h>

#include <numeric>
#include <tuple>

#include "probe/caches/cache_table.h"
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
    computed_ = {prompt ? range(0, prompt_length_) : std::vector<int64_t>()};
    work.values = computed_.known;
    if (answer || options_.transfer_ratio > 0.0) {
      values = weights.value(x.narrow(1, prompt_length_, x.size(1) - prompt_length_));
      work.values.insert(work.values.end(), answer_rows.begin(), answer_rows.end());
      if (answer) {
        computed_.known = work.values;
      } else {
        add(most_changed(keys.value_rows(layer, answer_rows), values));
      }
    }
    if (prompt) {
      keys.write_values(layer, range(0, prompt_length_),
                        weights.value(x.narrow(1, 0, prompt_length_)));
    }
    if (values.defined()) keys.write_values(layer, answer_rows, values);
    work.queries = work.keys = computed_.known;
    work.chosen = computed_.chosen;
    at::Tensor& kept = stored(attention_, layer, x);
    if (computed_.count() == 0) return kept;
    index_ = index_of(computed_, x.device());
    const at::Tensor input = x.index_select(1, index_);
    const RotaryRows turned = rotary.rows(index_);
    const at::Tensor key = weights.key(input, turned);
    const int64_t known = std::ssize(computed_.known);
    keys.write_keys(layer, computed_.known, key.narrow(2, 0, known));
    if (computed_.chosen.defined()) {
      keys.write_chosen_keys(layer, computed_.chosen,
                             key.narrow(2, known, computed_.chosen.numel()));
    }
    kept.index_copy_(1, index_, weights.output(attend(weights.query(input, turned), computed_)));
    return kept;
  }

  at::Tensor ffn(int64_t layer, const at::Tensor& x,
                 const std::function<at::Tensor(const at::Tensor&)>& mlp) override {
    at::Tensor& kept = stored(ffn_, layer, x);
    if (computed_.count() == 0) return kept;
    return kept.index_copy_(1, index_, mlp(x.index_select(1, index_)));
  }

 private:
  /// Positions [C] int64 of the answer rows whose value turned farthest, ascending; values [1, K,
  /// R, D]. Their number depends on R alone, so the host need not wait for them.
  at::Tensor most_changed(const at::Tensor& before, const at::Tensor& now) const {
    const auto flat = [](const at::Tensor& values) {
      return values.select(0, 0).transpose(0, 1).flatten(1).to(at::kFloat);  // [R, K * D]
    };
    const at::Tensor cosine = at::cosine_similarity(flat(now), flat(before), -1);
    const auto count =
        static_cast<int64_t>(static_cast<double>(cosine.size(0)) * options_.transfer_ratio);
    const at::Tensor order = std::get<1>(cosine.sort(/*stable=*/true, 0, /*descending=*/false));
    return std::get<0>(order.narrow(0, 0, count).sort()) + prompt_length_;
  }

  /// Adds rows to those of the current layer: rows chosen on a device stay on it.
  void add(const at::Tensor& rows) {
    if (!rows.is_cpu()) {
      if (rows.numel() > 0) computed_.chosen = rows;
      return;
    }
    const auto* first = rows.const_data_ptr<int64_t>();
    computed_.known.insert(computed_.known.end(), first, first + rows.numel());
  }

  static at::Tensor index_of(const CanvasRows& rows, at::Device device) {
    if (rows.known.empty()) return rows.chosen;
    const at::Tensor known = index_on(rows.known, device);
    return rows.chosen.defined() ? at::cat({known, rows.chosen}) : known;
  }

  static at::Tensor& stored(std::vector<at::Tensor>& kept, int64_t layer, const at::Tensor& x) {
    if (std::ssize(kept) <= layer) kept.push_back(at::zeros_like(x));
    return kept[static_cast<size_t>(layer)];
  }

  CacheOptions options_;
  bool prompt_due_ = true;
  bool answer_due_ = true;
  int64_t prompt_length_ = 0;
  CanvasRows computed_;                      // of the current layer
  at::Tensor index_;                         // of `computed_`, on the device; [R] int64
  std::vector<at::Tensor> attention_, ffn_;  // by layer [1, L, hidden_size]: outputs of the rows
};

}  // namespace

std::unique_ptr<CanvasCache> make_dllm_cache(const CacheOptions& options) {
  return std::make_unique<DllmCache>(options);
}

CacheEntry dllm_cache_entry() {
  CacheEntry entry;
  entry.name = "dllm-cache";
  entry.example = "dllm-cache,prompt_interval=50,answer_interval=2";
  entry.meaning = "refreshes prompt and answer at intervals, and changed answer rows in between";
  entry.source = "dLLM-Cache, arXiv 2506.06295";
  entry.options = {whole_option("prompt_interval", &CacheOptions::prompt_interval, 1,
                                "steps from one refresh of the prompt to the next"),
                   whole_option("answer_interval", &CacheOptions::answer_interval, 1,
                                "steps from one refresh of the answer to the next"),
                   real_option("transfer_ratio", &CacheOptions::transfer_ratio, {0.0, 1.0},
                               "share of the answer's rows computed between refreshes")};
  entry.single_rows = true;
  entry.make = [](const CacheOptions& options) { return make_dllm_cache(options); };
  entry.ranges = [](const CacheOptions& options, int64_t generated, int64_t) {
    return 1 + static_cast<int64_t>(options.transfer_ratio * static_cast<double>(generated));
  };
  entry.later_keys = [](int64_t, int64_t total, bool) { return total; };
  return entry;
}

}  // namespace blockscope
