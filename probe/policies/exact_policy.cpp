#include "probe/policies/exact_policy.h"

#include <utility>

#include "kernels/ops.h"
#include "probe/policies/policy_table.h"

namespace blockscope {

AttentionParts exact_attention(const AttentionInput& input, const ExternalKeys& external) {
  ExternalWeights weights;
  AttentionParts parts = parts_of(
      split_attention(input.q, external.key, external.value, external.length, input.k, input.v,
                      input.scale, input.keep_weights ? &weights : nullptr, input.spread));
  parts.weights = std::move(weights);
  return parts;
}

namespace {

class ExactPolicy : public AttentionPolicy {
 public:
  std::string name() const override { return "exact"; }
  AttentionParts attend(const AttentionInput& input, const ExternalKeys& external) override {
    return exact_attention(input, external);
  }
  std::optional<std::vector<int64_t>> repeats() const override { return std::vector<int64_t>(); }
};

}  // namespace

std::unique_ptr<AttentionPolicy> make_exact_policy() { return std::make_unique<ExactPolicy>(); }

PolicyEntry exact_entry() {
  PolicyEntry entry;
  entry.name = entry.example = "exact";
  entry.meaning = "reads every external key at every step: the reference of all others";
  entry.source = "SDAR, generate.py:block_diffusion_generate";
  entry.make = [](const PolicyOptions&, const PolicyModel&, nlohmann::json&) {
    return make_exact_policy();
  };
  return entry;
}

}  // namespace blockscope
