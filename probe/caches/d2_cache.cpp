#include "probe/caches/d2_cache.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "probe/caches/cache_table.h"
#include "probe/caches/certainty_density.h"
#include "probe/model/device.h"
#include "probe/model/host_copies.h"

namespace blockscope {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
constexpr int64_t kMapNumbers = 1 << 22;  // most attention probabilities in memory at a time

class D2Cache : public CanvasCache {
 public:
  explicit D2Cache(const CacheOptions& options) : options_(options) {}

  std::vector<int64_t> rows(const CanvasState& state) override {
    if (next_.empty()) {
      next_.resize(static_cast<size_t>(state.length));
      std::iota(next_.begin(), next_.end(), int64_t{0});
    }
    rows_ = next_;
    length_ = state.length;
    maps_.clear();
    return rows_;
  }

  bool wants_answer_confidence() const override { return true; }

  at::Tensor attention_block(int64_t layer, const AttentionLayer& weights, const at::Tensor& x,
                             const RotaryRows& rotary, CanvasKeys& keys, const RowAttention& attend,
                             const at::Tensor* needed, LayerWork& work) override {
    const auto [q, k, v] = weights.project(x, rotary);
    keys.write_keys(layer, rows_, k);
    keys.write_values(layer, rows_, v);
    work = {rows_, rows_, rows_};
    maps_.push_back(attention_map(q, keys.ordered_key(layer), weights.scale()));
    return weights.output(
        attend(needed == nullptr ? q : q.index_select(2, on_device(*needed, q.device())),
               {positions_of(needed)}));
  }

  void end_pass() override { rollout_ = HostCopies(std::vector{rollout()}); }

  void end_step(const CanvasState& state, const CanvasFeedback& feedback) override {
    remember(feedback.confidence);
    std::vector<bool> chosen(static_cast<size_t>(state.length), false);
    const auto answer = [&](int64_t i) { return static_cast<size_t>(state.prompt_length + i); };
    const std::vector<bool> certain = certain_masks(state);
    for (int64_t i = 0; i < std::ssize(certain); ++i) {
      const int64_t row = i - state.logit_shift;
      if (certain[static_cast<size_t>(i)] && row >= 0) chosen[answer(row)] = true;
    }
    for (const int64_t position : feedback.selected) chosen[static_cast<size_t>(position)] = true;
    add_important(rollout_.wait().front(), chosen);
    if (state.logit_shift > 0) {
      // The prompt's last row predicts the answer's first position, and only that.
      chosen[static_cast<size_t>(state.prompt_length - 1)] = certain.front();
    }
    inflate(chosen);
    next_.clear();
    for (int64_t row = 0; row < state.length; ++row) {
      if (chosen[static_cast<size_t>(row)]) next_.push_back(row);
    }
  }

 private:
  /// Mean over the heads of the attention probabilities, [R, L] float32, columns by position: q
  /// [1, H, R, D], keys [K, L, D]. It takes a part of the rows at a time, to limit the memory for
  /// a long canvas.
  static at::Tensor attention_map(const at::Tensor& q, const at::Tensor& keys, double scale) {
    const int64_t kv_heads = keys.size(0);
    const at::Tensor by_kv_head =
        q[0].to(at::kFloat).view({kv_heads, q.size(1) / kv_heads, q.size(2), q.size(3)});
    const at::Tensor columns = keys.to(at::kFloat).transpose(1, 2);  // [K, D, L]
    const int64_t part = std::max<int64_t>(1, kMapNumbers / (q.size(1) * keys.size(1)));
    std::vector<at::Tensor> rows;
    for (int64_t first = 0; first < q.size(2); first += part) {
      const int64_t count = std::min(part, q.size(2) - first);
      const at::Tensor mine = by_kv_head.narrow(2, first, count).flatten(1, 2);  // [K, G r, D]
      const at::Tensor probability = at::softmax(at::bmm(mine, columns).mul_(scale), -1);
      rows.push_back(probability.view({q.size(1), count, keys.size(1)}).mean(0));
    }
    return rows.size() == 1 ? rows.front() : at::cat(rows);
  }

  /// How much attention flows from the whole canvas into each position, [L] float64: the column
  /// sums of the product of all layers' (A + I) / 2. A has the rows of this pass, and the
  /// identity's elsewhere.
  at::Tensor rollout() const {
    const at::Device device = maps_.empty() ? at::Device(at::kCPU) : maps_.front().device();
    at::Tensor flow = at::ones({length_}, at::dtype(at::kFloat).device(device));
    const at::Tensor index = index_on(rows_, device);
    for (auto map = maps_.rbegin(); map != maps_.rend(); ++map) {
      const at::Tensor mine = flow.index_select(0, index);
      const at::Tensor half = mine / (map->sum(-1) + 1.0);
      flow = flow.index_copy(0, index, half) + at::matmul(half, *map);
    }
    return flow.to(at::kDouble);
  }

  void remember(const std::vector<float>& confidence) {
    if (confidence_.empty()) {
      confidence_ = confidence;
      return;
    }
    if (options_.as_released) return;
    for (size_t i = 0; i < confidence.size(); ++i) {
      if (!std::isnan(confidence[i])) confidence_[i] = confidence[i];
    }
  }

  /// [G]: the masks of stage 1.
  std::vector<bool> certain_masks(const CanvasState& state) const {
    const int64_t length = state.length - state.prompt_length;
    std::vector<bool> known;
    for (int64_t i = 0; i < length; ++i) {
      known.push_back(!state.masked[static_cast<size_t>(state.prompt_length + i)]);
    }
    const std::vector<float> density = certainty_density(known, options_.sigma, {0, length});
    const int64_t begin = state.block_start - state.prompt_length;
    int64_t last = length - 1;
    int64_t masks = 0;
    for (int64_t i = 0; i < length; ++i) {
      masks += known[static_cast<size_t>(i)] ? 0 : 1;
      if (masks < options_.current_k) continue;
      last = i;
      break;
    }
    const int64_t end = std::min(length, (last / state.block_length + 1) * state.block_length);
    std::vector<float> score(static_cast<size_t>(length), kMinusInf);
    float best = kMinusInf;
    for (size_t i = 0; i < score.size(); ++i) {
      if (!std::isnan(confidence_[i])) score[i] = confidence_[i] * density[i];
      best = std::max(best, score[i]);
    }
    std::vector<int64_t> order;
    for (int64_t i = begin; i < end; ++i) {
      if (known[static_cast<size_t>(i)]) continue;
      if (i < begin + state.block_length) score[static_cast<size_t>(i)] += best;
      order.push_back(i);
    }
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return score[static_cast<size_t>(a)] > score[static_cast<size_t>(b)];
    });
    order.resize(std::min(order.size(), static_cast<size_t>(options_.current_k)));
    std::vector<bool> certain(static_cast<size_t>(length), false);
    for (const int64_t i : order) certain[static_cast<size_t>(i)] = true;
    return certain;
  }

  void add_important(const at::Tensor& rollout, std::vector<bool>& chosen) const {
    const auto* importance = rollout.const_data_ptr<double>();
    std::vector<int64_t> order;
    double sum = 1e-9;
    for (int64_t row = 0; row < std::ssize(chosen); ++row) {
      if (chosen[static_cast<size_t>(row)]) continue;
      order.push_back(row);
      sum += importance[row];
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return importance[a] > importance[b]; });
    double covered = 0.0;
    for (size_t i = 0; i < order.size(); ++i) {
      covered += importance[order[i]] / sum;
      if (i > 0 && covered > options_.rollout_p) break;
      chosen[static_cast<size_t>(order[i])] = true;
    }
  }

  void inflate(std::vector<bool>& chosen) const {
    int64_t previous = -1;
    for (int64_t row = 0; row < std::ssize(chosen); ++row) {
      if (!chosen[static_cast<size_t>(row)]) continue;
      if (previous >= 0 && row - previous <= options_.inflate_window) {
        for (int64_t p = previous + 1; p < row; ++p) chosen[static_cast<size_t>(p)] = true;
      }
      previous = row;
    }
  }

  CacheOptions options_;
  std::vector<int64_t> next_;      // rows of the next pass
  std::vector<at::Tensor> maps_;   // by layer [R, L] of the current pass
  HostCopies rollout_;             // of the current pass
  int64_t length_ = 0;             // L
  std::vector<float> confidence_;  // [G] from the last pass that computed it; NaN: none yet
};

}  // namespace

std::unique_ptr<CanvasCache> make_d2_cache(const CacheOptions& options) {
  return std::make_unique<D2Cache>(options);
}

CacheEntry d2_cache_entry() {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  CacheEntry entry;
  entry.name = "d2cache";
  entry.example = "d2cache,current_k=32,certainty_sigma=10";
  entry.meaning = "computes the masks about to be decided and the rows that attention flows to";
  entry.source = "d2Cache, arXiv 2509.23094; Kamichanw/d2Cache src/cache/d2cache.py";
  entry.options = {
      whole_option("current_k", &CacheOptions::current_k, 1, "most masks computed at a step"),
      real_option("certainty_sigma", &CacheOptions::sigma, {0.0, kInfinite, true},
                  "width of the certainty density, in positions"),
      real_option("rollout_p", &CacheOptions::rollout_p, {0.0, 1.0},
                  "share of the attention rollout that other computed rows cover"),
      whole_option("inflate_window", &CacheOptions::inflate_window, 0,
                   "gaps up to this wide between computed rows are filled; 0: none"),
      switch_option("as_released", &CacheOptions::as_released,
                    "rank masks by their first confidence, as the released code does")};
  entry.single_rows = true;
  entry.make = [](const CacheOptions& options) { return make_d2_cache(options); };
  // Two ranges are farther apart than the window, and never adjacent.
  entry.ranges = [](const CacheOptions& options, int64_t, int64_t total) {
    return 1 + total / std::max<int64_t>(options.inflate_window + 1, 2);
  };
  entry.later_keys = [](int64_t, int64_t total, bool) { return total; };
  return entry;
}

}  // namespace blockscope
