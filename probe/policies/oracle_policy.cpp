#include "probe/policies/oracle_policy.h"

#include "kernels/ops.h"
#include "probe/policies/policy_table.h"

namespace blockscope {
namespace {

class OraclePolicy : public SelectionPolicy {
 public:
  explicit OraclePolicy(const SelectionOptions& options) : SelectionPolicy("oracle", options) {}

 protected:
  bool dense(const SequencePass& /*pass*/) const override { return false; }
  void choose(const SequenceAttention& at, KeySelection& selection) override {
    SequenceAttention exact = at;
    const at::Tensor no_keys = at.external.key.narrow(2, 0, 0);
    exact.lse_external = split_attention(at.q, at.external.key, at.external.value,
                                         at.external.length, no_keys, no_keys, at.scale)
                             .lse_external;
    selection = exact_set(exact);
  }
  int64_t rows_scored(const SequencePass& /*pass*/, int64_t length) const override {
    return length;
  }
};

}  // namespace

std::unique_ptr<AttentionPolicy> make_oracle_policy(const SelectionOptions& options) {
  return std::make_unique<OraclePolicy>(options);
}

PolicyEntry oracle_entry() {
  PolicyEntry entry = sparse_entry(
      {"oracle", "at every step the keys with the largest mean probability of that step",
       "MAGE, eq. 2 with exact scores", "oracle,k=512"});
  entry.reads = [](const PolicyOptions&, int64_t length, int64_t size) {
    return StepReads{size, length};
  };
  entry.make = [](const PolicyOptions& options, const PolicyModel& model, nlohmann::json&) {
    return make_oracle_policy(selection_options(options, model.num_layers));
  };
  return entry;
}

}  // namespace blockscope
