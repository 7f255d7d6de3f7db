#include "probe/policies/mage_policy.h"

#include "probe/policies/policy_table.h"

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

PolicyEntry mage_entry() {
  PolicyEntry entry =
      sparse_entry({"mage", "the keys with the largest mean probability in a block's first step",
                    "MAGE (\"All-[MASK] Block Already Knows Where to Look\"), algorithm 1, eq. 3",
                    "mage,k=512,exact_layers=2"});
  entry.within_block = [](const PolicyOptions&) { return true; };
  entry.sets_from = [](const PolicyOptions&) { return SetsFrom::first_of_block; };
  entry.make = [](const PolicyOptions& options, const PolicyModel& model, nlohmann::json&) {
    return make_mage_policy(selection_options(options, model.num_layers));
  };
  return entry;
}

PolicyEntry mage_flashblock_entry() {
  PolicyEntry entry = mage_entry();
  entry.name = "mage+flashblock";
  entry.meaning = "mage's keys, and the first step's attention over the others";
  entry.source = "FlashBlock, arXiv 2602.05305, appendix D, with MAGE's sets";
  entry.example = "mage+flashblock,k=512";
  entry.residual = true;
  return entry;
}

}  // namespace blockscope
