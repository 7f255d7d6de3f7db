#include "probe/policies/sparsed_policy.h"

#include "decode_record/base/error.h"

namespace blockscope {
namespace {

constexpr double kSkip = 0.2;

class SparseDPolicy : public SelectionPolicy {
 public:
  SparseDPolicy(const SelectionOptions& options, SparseDScope scope)
      : SelectionPolicy(options.residual ? "sparsed+flashblock" : "sparsed", options),
        scope_(scope) {}

 protected:
  bool keeps_sets() const override { return true; }
  bool dense(const SequencePass& pass) const override {
    return scope_ == SparseDScope::block
               ? pass.first_step()
               : pass.run_step <= sparsed_capture_step(pass.planned_steps);
  }
  bool captures(const SequencePass& pass) const override {
    return scope_ == SparseDScope::block
               ? pass.first_step()
               : pass.run_step == sparsed_capture_step(pass.planned_steps);
  }

 private:
  SparseDScope scope_;
};

}  // namespace

int64_t sparsed_capture_step(int64_t planned_steps) {
  // end_time = int(steps * skip) + 1, counted from 0, inclusive.
  return static_cast<int64_t>(static_cast<double>(planned_steps) * kSkip) + 2;
}

std::unique_ptr<AttentionPolicy> make_sparsed_policy(const SelectionOptions& options,
                                                     SparseDScope scope) {
  if (options.residual && scope == SparseDScope::run) {
    throw UsageError(
        "sparsed+flashblock: expected sets per block, got one set for the run. HINT: the residual "
        "belongs to the queries of one block: add --per-block");
  }
  return std::make_unique<SparseDPolicy>(options, scope);
}

}  // namespace blockscope
