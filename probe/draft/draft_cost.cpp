#include "probe/draft/draft_cost.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "kernels/ops.h"
#include "probe/decode/decoder.h"
#include "probe/draft/draft_seams.h"
#include "probe/model/device.h"
#include "probe/model/stopwatch.h"

namespace blockscope {
namespace {

constexpr int kFewestTurns = 3;
constexpr int kMostTurns = 15;
constexpr std::chrono::seconds kEnough{2};
constexpr uint64_t kSeed = 17;

int64_t median(std::vector<int64_t> times) {
  const auto middle = times.begin() + std::ssize(times) / 2;
  std::nth_element(times.begin(), middle, times.end());
  return std::max<int64_t>(*middle, 1);  // a tiny pass may be shorter than the clock's tick
}

class CostMeter {
 public:
  CostMeter(const BlockDiffusionModel& target, const DraftModel& draft, int64_t longest,
            int64_t context)
      : random_(at::make_generator<at::CPUGeneratorImpl>(kSeed)),
        longest_(longest),
        context_length_(context),
        target_(target.for_longest_sequence(context + longest)),
        draft_(draft.for_longest_sequence(context + longest)),
        target_cache_(filled(target_.config())),
        context_(filled(draft_.config())),
        target_seams_(target_cache_, draft_.draft().target_layers, target_.config().num_layers,
                      nobody_),
        draft_seams_(context_, draft_.config(), nobody_) {}

  int64_t target_pass(int64_t length) {
    int64_t elapsed = 0;
    const at::Tensor tokens =
        at::randint(target_.config().vocab_size, {1, length}, random_, at::kLong);
    {
      const Stopwatch watch(elapsed);
      target_seams_.begin_pass(nullptr, 0, length);
      hidden_ = target_.forward(tokens, positions(length), target_seams_);
      best_tokens(target_.logits(hidden_[0]));  // copies to the host, so it waits for a device
    }
    return elapsed;
  }

  /// Call it after a target's pass over as many positions.
  int64_t draft_pass(int64_t length) {
    int64_t elapsed = 0;
    const int64_t rows = draft_.rows_of(length);
    at::Tensor block = at::full({1, rows}, draft_.draft().mask_token_id, at::kLong);
    block[0][0] = 0;
    {
      const Stopwatch watch(elapsed);
      const at::Tensor features =
          draft_.context_features(target_seams_.taps().side_by_side(hidden_));
      const RotaryRows rotary = draft_.body().rotary_rows(positions(length));
      for (int64_t layer = 0; layer < draft_.config().num_layers; ++layer) {
        const AttentionLayer& weights = draft_.body().attention_layer(layer);
        context_.store(layer, 0, weights.key(features, rotary), weights.value(features));
      }
      draft_seams_.begin_round(nullptr, rows, length);
      const at::Tensor hidden = draft_.body().forward_embedded(draft_.embed(block, target_),
                                                               positions(rows), draft_seams_);
      draft_.choose(hidden, block.select(1, 0), target_);
    }
    return elapsed;
  }

 private:
  KvCache filled(const ModelConfig& config) {
    const int64_t capacity = context_length_ + longest_;
    const KvCacheShape sizes = cache_shape(config, 1, capacity, longest_);
    KvCache cache(sizes, target_.dtype(), target_.device());
    for (int64_t layer = 0; layer < config.num_layers; ++layer) {
      const std::vector<int64_t> shape{
          1, config.layer(layer).num_kv_heads,
          std::min(context_length_, sizes.layer_capacity(layer) - longest_),
          config.layer(layer).head_dim};
      const auto keys = [&] {
        return on_device(at::randn(shape, random_).to(target_.dtype()), target_.device());
      };
      const at::Tensor key = keys();
      cache.store(layer, 0, key, keys());
    }
    cache.restore(0, context_length_);
    return cache;
  }

  at::Tensor positions(int64_t length) const {
    return at::arange(context_length_, context_length_ + length, at::kLong).unsqueeze(0);
  }

  at::Generator random_;
  const int64_t longest_;
  const int64_t context_length_;
  const BlockDiffusionModel target_;
  const DraftModel draft_;
  KvCache target_cache_;
  KvCache context_;
  Watcher nobody_{nullptr};
  TargetSeams target_seams_;
  DraftSeams draft_seams_;
  at::Tensor hidden_;  // of the last target's pass
};

}  // namespace

std::vector<DraftCost> draft_cost_plan(int64_t block_length, int64_t context_length) {
  std::vector<DraftCost> costs;
  for (int64_t length = 1; length < block_length; length *= 2) {
    costs.push_back({length, context_length, 0, 0});
  }
  costs.push_back({block_length, context_length, 0, 0});
  return costs;
}

void measure_draft_cost(const BlockDiffusionModel& target, const DraftModel& draft,
                        std::vector<DraftCost>& costs) {
  const c10::InferenceMode guard;
  CostMeter meter(target, draft, costs.back().block_length, costs.back().context_length);
  std::vector<std::vector<int64_t>> target_ns(costs.size());
  std::vector<std::vector<int64_t>> draft_ns(costs.size());
  const auto begin = std::chrono::steady_clock::now();
  for (int turn = 0; turn < kMostTurns; ++turn) {
    if (turn >= kFewestTurns && std::chrono::steady_clock::now() - begin > kEnough) break;
    for (size_t i = 0; i < costs.size(); ++i) {
      // The first round brings the machine's caches into the state of a longer run.
      for (const bool counts : {false, true}) {
        const int64_t of_target = meter.target_pass(costs[i].block_length);
        const int64_t of_draft =
            costs[i].block_length > 1 ? meter.draft_pass(costs[i].block_length) : 0;
        if (!counts) continue;
        target_ns[i].push_back(of_target);
        draft_ns[i].push_back(of_draft);
      }
    }
  }
  for (size_t i = 0; i < costs.size(); ++i) {
    costs[i].target_ns = median(std::move(target_ns[i]));
    costs[i].draft_ns = costs[i].block_length > 1 ? median(std::move(draft_ns[i])) : 0;
  }
}

}  // namespace blockscope
