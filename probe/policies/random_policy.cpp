#include "probe/policies/random_policy.h"

#include <ATen/ATen.h>

#include <numeric>
#include <utility>
#include <vector>

#include "probe/model/device.h"
#include "probe/policies/policy_table.h"

namespace blockscope {
namespace {

/// SplitMix64 (Steele, Lea, Flood 2014): a stream of numbers, also used to mix its identifiers.
struct SplitMix {
  uint64_t state;
  uint64_t next() {
    uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  void mix(uint64_t value) { state = next() ^ value; }
  /// [0, bound) without the bias of a remainder.
  uint64_t below(uint64_t bound) {
    const uint64_t limit = UINT64_MAX - UINT64_MAX % bound;
    uint64_t value = next();
    while (value >= limit) value = next();
    return value % bound;
  }
};

class RandomPolicy : public SelectionPolicy {
 public:
  RandomPolicy(const SelectionOptions& options, uint64_t seed)
      : SelectionPolicy("random", options), seed_(seed) {}

 protected:
  bool dense(const SequencePass& /*pass*/) const override { return false; }
  void choose(const SequenceAttention& at, KeySelection& selection) override {
    if (!at.pass.first_step() && selection.index.defined()) return;
    const int64_t length = at.external.key.size(2);
    const int64_t kv_heads = at.external.key.size(1);
    const int64_t k = options().set_size(length);
    selection.index = at::empty({kv_heads, k}, at::kInt);
    auto* out = selection.index.mutable_data_ptr<int32_t>();
    std::vector<int32_t> all(static_cast<size_t>(length));
    for (int64_t head = 0; head < kv_heads; ++head) {
      SplitMix stream{seed_};
      stream.mix(at.pass.prompt_hash);
      stream.mix(static_cast<uint64_t>(at.pass.block));
      stream.mix(static_cast<uint64_t>(at.layer));
      stream.mix(static_cast<uint64_t>(head));
      std::iota(all.begin(), all.end(), 0);
      for (int64_t i = 0; i < k; ++i) {  // the first k of a Fisher-Yates shuffle
        const auto j = static_cast<size_t>(i) + stream.below(static_cast<uint64_t>(length - i));
        std::swap(all[static_cast<size_t>(i)], all[j]);
        *out++ = all[static_cast<size_t>(i)];
      }
    }
    selection.index = on_device(selection.index, at.external.key.device());
  }

 private:
  uint64_t seed_;
};

}  // namespace

std::unique_ptr<AttentionPolicy> make_random_policy(const SelectionOptions& options,
                                                    uint64_t seed) {
  return std::make_unique<RandomPolicy>(options, seed);
}

PolicyEntry random_entry() {
  ChoiceOption<PolicyOptions> seed =
      whole_option("seed", &PolicyOptions::seed, 0, "seed of the draws", UINT64_MAX);
  seed.key = "policy_seed";  // `seed` is the sampling's
  PolicyEntry entry =
      sparse_entry({"random", "keys drawn at random once a block: a floor for all sparse policies",
                    "ours, as a control", "random,k=512,seed=3"},
                   {std::move(seed)});
  entry.make = [](const PolicyOptions& options, const PolicyModel& model, nlohmann::json&) {
    return make_random_policy(selection_options(options, model.num_layers), options.seed);
  };
  return entry;
}

}  // namespace blockscope
