#include "probe/policies/sparsed_policy.h"

#include "decode_record/base/error.h"
#include "probe/policies/policy_table.h"

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
        "sparsed+flashblock: expected sets per block, got one set for the run. HINT: add "
        "per_block, because the residual belongs to the queries of one block");
  }
  return std::make_unique<SparseDPolicy>(options, scope);
}

PolicyEntry sparsed_entry() {
  PolicyEntry entry = sparse_entry(
      {"sparsed", "the best keys of one early step, kept for the whole run or for each block",
       "SparseD, arXiv 2509.24014; INV-WZQ/SparseD 52155b4", "sparsed,density=0.3"},
      {switch_option("per_block", &PolicyOptions::per_block,
                     "sets from each block's first step instead of one set for the run")});
  entry.within_block = [](const PolicyOptions& options) { return options.per_block; };
  entry.sets_from = [](const PolicyOptions& options) {
    return options.per_block ? SetsFrom::first_of_block : SetsFrom::once_a_run;
  };
  entry.refuses = [](const PolicyOptions& options, const PolicySite& site) -> std::string {
    if (!site.bidirectional || options.per_block) return "";
    return "keeps its keys for the whole run, but a bidirectional model's external keys differ "
           "from block to block. HINT: add per_block";
  };
  entry.make = [](const PolicyOptions& options, const PolicyModel& model, nlohmann::json&) {
    return make_sparsed_policy(selection_options(options, model.num_layers),
                               options.per_block ? SparseDScope::block : SparseDScope::run);
  };
  return entry;
}

PolicyEntry sparsed_flashblock_entry() {
  PolicyEntry entry = sparsed_entry();
  entry.name = "sparsed+flashblock";
  entry.meaning = "sparsed's keys of a block, and its first step's attention over the others";
  entry.source = "FlashBlock, arXiv 2602.05305, appendix D";
  entry.example = "sparsed+flashblock,density=0.3,per_block";
  entry.residual = true;
  entry.check = [shared = entry.check](const PolicyOptions& options) {
    shared(options);
    if (options.per_block) return;
    throw UsageError(
        "expected per_block, got none. HINT: add per_block, because the residual belongs to the "
        "queries of one block, and so must the sets");
  };
  return entry;
}

}  // namespace blockscope
