#include "probe/policies/recent_policy.h"

#include <ATen/ATen.h>

#include "probe/policies/policy_table.h"

namespace blockscope {
namespace {

class RecentPolicy : public SelectionPolicy {
 public:
  explicit RecentPolicy(const SelectionOptions& options) : SelectionPolicy("recent", options) {}

 protected:
  bool dense(const SequencePass& /*pass*/) const override { return false; }
  void choose(const SequenceAttention& at, KeySelection& selection) override {
    const int64_t length = at.external.key.size(2);
    const int64_t k = options().set_size(length);
    selection.index =
        at::arange(length - 1, length - 1 - k, -1, at.external.key.options().dtype(at::kInt))
            .expand({at.external.key.size(1), k})
            .contiguous();
  }
};

}  // namespace

std::unique_ptr<AttentionPolicy> make_recent_policy(const SelectionOptions& options) {
  return std::make_unique<RecentPolicy>(options);
}

PolicyEntry recent_entry() {
  PolicyEntry entry = sparse_entry({"recent", "the last keys of the prefix: a sliding window",
                                    "ours, as a control", "recent,k=512"});
  entry.make = [](const PolicyOptions& options, const PolicyModel& model, nlohmann::json&) {
    return make_recent_policy(selection_options(options, model.num_layers));
  };
  return entry;
}

}  // namespace blockscope
