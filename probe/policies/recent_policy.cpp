#include "probe/policies/recent_policy.h"

#include <ATen/ATen.h>

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

}  // namespace blockscope
