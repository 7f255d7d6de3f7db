// joint_threshold: thresholds for masks and for tokens already there (LLaDA2.1). Source: diffusers
// 0.42.1, `BlockRefinementScheduler.step` and `check_block_should_continue`, as `LLaDA2Pipeline`
// calls them. docs/strategies.md says where SGLang's JointThreshold differs.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "decode_record/base/error.h"
#include "decode_record/base/text.h"
#include "probe/strategies/strategy_table.h"

namespace blockscope {
namespace {

constexpr int64_t kUsualPostSteps = 16;

/// All masks above the threshold if they are at least the quota, else the best ones. The quota
/// follows the steps that began with a mask.
std::vector<int64_t> fill(const EditStep& step) {
  return select_transfers(step.options, step.memory.mask_steps, step.prediction, step.masked);
}

EditChoice joint_edit(EditStep& step) {
  EditMemory& memory = step.memory;
  const bool began_with_masks = std::ranges::find(step.masked, true) != step.masked.end();
  const bool edits = step.options.editing_threshold > 0.0;
  EditChoice choice;
  if (began_with_masks) choice.selected = fill(step);
  if (edits) choice.edited = confident_edits(step, step.options.editing_threshold);
  if (began_with_masks) {
    ++memory.mask_steps;
    auto left = std::ranges::count(step.masked, true);
    for (const int64_t p : choice.selected) {
      left -= step.prediction.token[static_cast<size_t>(p)] == step.ids.mask ? 0 : 1;
    }
    // As in the official code, masks filled by the last scheduled step are not edited afterwards.
    memory.ended = memory.mask_steps >= step.options.denoising_steps || (!edits && left == 0);
  } else {
    ++memory.post_steps;
    memory.ended = choice.edited.empty() || memory.post_steps > step.options.max_post_steps;
  }
  return choice;
}

}  // namespace

std::vector<int64_t> confident_edits(const EditStep& step, double threshold) {
  const auto least = static_cast<float>(threshold);
  std::vector<int64_t> edited;
  for (size_t p = 0; p < step.tokens.size(); ++p) {
    if (step.masked[p] || !step.generated[p] || !step.differs(p)) continue;
    if (step.prediction.confidence[p] > least) edited.push_back(static_cast<int64_t>(p));
  }
  return edited;
}

void move_tokens(std::vector<int64_t>& block, const std::vector<int64_t>& inserted,
                 const std::vector<int64_t>& deleted, int64_t mask_token_id) {
  std::vector<int64_t> grown;
  auto next = block.cbegin();
  for (const int64_t position : inserted) {
    const auto stop = block.cbegin() + position;
    grown.insert(grown.end(), next, stop);
    grown.push_back(mask_token_id);
    next = stop;
  }
  grown.insert(grown.end(), next, block.cend());
  block.clear();
  for (size_t p = 0; p < grown.size(); ++p) {
    if (!std::ranges::binary_search(deleted, static_cast<int64_t>(p))) block.push_back(grown[p]);
  }
}

std::string refuse_edits(const StrategySite& site) {
  if (site.bidirectional) {
    return "edits the tokens of a block, which is defined for block-causal models (LLaDA2, SDAR). "
           "HINT: wino takes tokens of a bidirectional model back";
  }
  if (site.logit_shift) {
    return "is not defined for a model with a token shift (Fast-dLLM v2): a pass does not predict "
           "the block's first token again. HINT: low_confidence_dynamic only fills masks";
  }
  return "";
}

StrategyEntry joint_threshold_entry() {
  StrategyEntry entry;
  entry.name = "joint_threshold";
  entry.example = "joint_threshold,threshold=0.7,editing_threshold=0.5";
  entry.meaning = "masks above a threshold, and tokens that another one replaces above a second";
  entry.source = "LLaDA2.1, arXiv 2602.08676; diffusers, BlockRefinementScheduler.step";
  entry.options = {
      with_default(threshold_option("confidence that a mask must be above"), "0.7"),
      real_option("editing_threshold", &UnmaskingOptions::editing_threshold, {0.0, 1.0},
                  "confidence that the replacement of a token must be above; 0: no edits"),
      whole_option("max_post_steps", &UnmaskingOptions::max_post_steps, 0,
                   "steps that only edit, after a block's last mask and beyond "
                   "--denoising-steps: at most this many, and one more")};
  entry.stops_within = true;
  entry.check = [](const UnmaskingOptions& options) {
    if (options.editing_threshold > 0.0 || options.max_post_steps == kUsualPostSteps) return;
    throw UsageError(
        "max_post_steps: expected editing_threshold above 0, because without edits a block ends "
        "with its last mask. HINT: leave max_post_steps out");
  };
  entry.text = [](const UnmaskingOptions& options) -> std::string {
    if (options.editing_threshold == 0.0) return ", no edits";
    return fmt::format(", edits above {:g}, {}", options.editing_threshold,
                       plural(options.max_post_steps, "post step"));
  };
  entry.refuses = refuse_edits;
  entry.select = [](StrategyStep& step) { return step.above_or_due(); };
  entry.edit = joint_edit;
  return entry;
}

}  // namespace blockscope
