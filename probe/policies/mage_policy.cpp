#include "probe/policies/mage_policy.h"

namespace blockscope {
namespace {

class MagePolicy : public SelectionPolicy {
 public:
  explicit MagePolicy(const SelectionOptions& options)
      : SelectionPolicy(options.residual ? "mage+flashblock" : "mage", options) {}

 protected:
  bool keeps_sets() const override { return true; }
  bool dense(const SequencePass& pass) const override { return pass.first_step(); }
  bool captures(const SequencePass& pass) const override { return pass.first_step(); }
};

}  // namespace

std::unique_ptr<AttentionPolicy> make_mage_policy(const SelectionOptions& options) {
  return std::make_unique<MagePolicy>(options);
}

}  // namespace blockscope
