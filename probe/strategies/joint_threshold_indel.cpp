// joint_threshold_indel: like joint_threshold, and two tokens change the block's length (LLaDA2.2).
// DELETE removes its position, SPLIT puts a mask before the token that it stands for. The block
// keeps its length: masks fill it up at its end, or tokens fall off.
// Source: LLaDA2.2 `modeling_llada2_moe.py:_joint_decode_block`, as FluxServe
// `decoders/levenshtein.py` follows it step by step. Three things follow FluxServe and SGLang 31773
// instead. If a block repeats, its least certain change is decided anew, not a drawn one. A literal
// DELETE or SPLIT of the prompt stays. The last step writes no [MASK].
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "decode_record/base/text.h"
#include "probe/strategies/strategy_table.h"

namespace blockscope {
namespace {

constexpr int64_t kMostSteps = 1000;  // generate()'s max_steps_per_block
constexpr int kMostTries = 5;         // to leave a block that was seen before

bool is_edit_token(const EditStep& step, int64_t token) {
  return token == step.ids.remove || token == step.ids.split;
}

/// Masks of the block now, by whether it began with them.
struct MaskCounts {
  int64_t original = 0;
  int64_t added = 0;
};

MaskCounts count_masks(const EditStep& step) {
  MaskCounts counts;
  for (size_t p = 0; p < step.masked.size(); ++p) {
    if (!step.masked[p]) continue;
    ++(step.memory.original[p] ? counts.original : counts.added);
  }
  return counts;
}

std::vector<int64_t> all_masks(const EditStep& step) {
  std::vector<int64_t> masks;
  for (size_t p = 0; p < step.masked.size(); ++p) {
    if (step.masked[p]) masks.push_back(static_cast<int64_t>(p));
  }
  return masks;
}

/// All masks above the threshold if they are at least the quota plus the masks that edits added,
/// else that number of the most confident ones. From step T on: all masks.
std::vector<int64_t> fill(const EditStep& step, int64_t added) {
  const int64_t steps = step.options.denoising_steps;
  std::vector<int64_t> masks = all_masks(step);
  if (step.memory.steps >= steps) return masks;
  const int64_t due = even_quota(step.memory.first_masks, steps, step.memory.steps) + added;
  const auto sure = [&](int64_t p) { return step.prediction.confidence[static_cast<size_t>(p)]; };
  const auto least = static_cast<float>(step.options.threshold);
  std::ranges::stable_sort(masks, std::greater<>(), sure);
  const int64_t above =
      std::ranges::count_if(masks, [&](int64_t position) { return sure(position) > least; });
  masks.resize(static_cast<size_t>(std::min(std::max(due, above), std::ssize(masks))));
  std::ranges::sort(masks);
  return masks;
}

/// Whether the step fills the last masks that the block began with.
bool fills_original(const EditStep& step, const std::vector<int64_t>& selected) {
  bool any = false;
  for (size_t p = 0; p < step.masked.size(); ++p) {
    if (!step.masked[p] || !step.memory.original[p]) continue;
    any = true;
    if (!std::ranges::binary_search(selected, static_cast<int64_t>(p))) return false;
  }
  return any;
}

std::vector<int64_t> written(const EditStep& step, const EditChoice& choice) {
  std::vector<int64_t> block = step.tokens;
  for (const std::vector<int64_t>* list : {&choice.selected, &choice.edited}) {
    for (const int64_t p : *list) {
      block[static_cast<size_t>(p)] = step.prediction.token[static_cast<size_t>(p)];
    }
  }
  return block;
}

/// While the step would write a block that an earlier one wrote, its least certain change takes the
/// best token apart from the one that it has.
void leave_loop(EditStep& step, const EditChoice& choice, std::vector<int64_t>& block) {
  const std::vector<float> sure = step.prediction.confidence;  // of the best tokens
  for (int tries = 0; tries < kMostTries && step.memory.seen.contains(block); ++tries) {
    std::optional<size_t> least;
    for (size_t p = 0; p < block.size(); ++p) {
      if (block[p] != step.tokens[p] && (!least || sure[p] < sure[*least])) least = p;
    }
    if (!least) return;
    step.take_best_without(*least, {block[*least]});
    block = written(step, choice);
  }
}

/// Takes DELETE and SPLIT out of the written block. Returns the moves, and moves `original` alike.
void apply_edit_tokens(EditStep& step, EditChoice& choice, const std::vector<int64_t>& block) {
  const auto length = std::ssize(block);
  std::vector<bool> original;
  std::vector<int64_t> gone;
  for (int64_t p = 0; p < length; ++p) {
    const auto at = static_cast<size_t>(p);
    const bool moves = step.generated[at] && block[at] != step.tokens[at];
    if (moves && block[at] == step.ids.remove) {
      gone.push_back(p + std::ssize(choice.inserted));
      continue;
    }
    if (moves && block[at] == step.ids.split) {
      choice.inserted.push_back(p);
      original.push_back(false);
    }
    original.push_back(step.memory.original[at]);
  }
  const int64_t grown = length + std::ssize(choice.inserted);
  for (int64_t rest = std::ssize(original); rest < length; ++rest) {
    choice.inserted.push_back(length);
  }
  // What falls off are the last positions that stay.
  for (int64_t p = grown - 1; std::ssize(original) > length; --p) {
    if (std::ranges::find(gone, p) != gone.end()) continue;
    gone.push_back(p);
    original.pop_back();
  }
  std::ranges::sort(gone);
  choice.deleted = std::move(gone);
  original.resize(static_cast<size_t>(length), false);
  step.memory.original = std::move(original);
  const auto consumed = [&](int64_t p) {
    const int64_t token = block[static_cast<size_t>(p)];
    return is_edit_token(step, token) && token != step.tokens[static_cast<size_t>(p)];
  };
  std::erase_if(choice.selected, consumed);
  std::erase_if(choice.edited, consumed);
}

void begin_block(EditStep& step) {
  step.memory.original = step.masked;
  step.memory.first_masks = std::ranges::count(step.masked, true);
}

EditChoice indel_edit(EditStep& step) {
  EditMemory& memory = step.memory;
  if (memory.steps == 0) begin_block(step);
  const MaskCounts masks = count_masks(step);
  memory.post_steps = masks.original == 0 ? memory.post_steps + 1 : 0;
  EditChoice choice;
  choice.selected = fill(step, masks.added);
  choice.edited = confident_edits(step, step.options.editing_threshold);
  const int64_t post = step.options.max_post_steps;
  const bool last = post > 0 ? memory.post_steps >= post : fills_original(step, choice.selected);
  if (last) {
    choice.selected = all_masks(step);
    for (const std::vector<int64_t>* list : {&choice.selected, &choice.edited}) {
      for (const int64_t p : *list) {
        const auto at = static_cast<size_t>(p);
        const int64_t token = step.prediction.token[at];
        if (token != step.ids.mask && !is_edit_token(step, token)) continue;
        step.take_best_without(at, {step.ids.mask, step.ids.remove, step.ids.split});
      }
    }
    std::erase_if(choice.edited, [&](int64_t p) { return !step.differs(static_cast<size_t>(p)); });
  }
  std::vector<int64_t> block = written(step, choice);
  if (!last) leave_loop(step, choice, block);
  memory.seen.insert(block);
  apply_edit_tokens(step, choice, block);
  // A token decided anew may equal the one that is there.
  std::erase_if(choice.edited, [&](int64_t p) { return !step.differs(static_cast<size_t>(p)); });
  ++memory.steps;
  std::vector<int64_t> after = written(step, choice);
  move_tokens(after, choice.inserted, choice.deleted, step.ids.mask);
  const bool stable = masks.original + masks.added == 0 && after == step.tokens;
  memory.ended = stable || last || memory.steps >= kMostSteps;
  return choice;
}

}  // namespace

StrategyEntry joint_threshold_indel_entry() {
  StrategyEntry entry;
  entry.name = "joint_threshold_indel";
  entry.example = "joint_threshold_indel,threshold=0.5";
  entry.meaning = fmt::format(
      "joint_threshold with two tokens that delete a position and insert a mask; a block may take "
      "more than --denoising-steps, up to {}",
      kMostSteps);
  entry.source = "LLaDA2.2, modeling_llada2_moe.py:_joint_decode_block; SGLang 31773";
  entry.options = {
      with_default(threshold_option("confidence that a mask must be above"), "0.5"),
      with_default(
          real_option("editing_threshold", &UnmaskingOptions::editing_threshold, {0.0, 1.0},
                      "confidence that the replacement of a token must be above"),
          "0"),
      whole_option("max_post_steps", &UnmaskingOptions::max_post_steps, 0,
                   "a block ends after this many steps in a row without a mask of its beginning; "
                   "the last one fills all masks")};
  entry.step_limit = kMostSteps;
  entry.moves_tokens = true;
  entry.text = [](const UnmaskingOptions& options) {
    return fmt::format(", edits above {:g}, {}", options.editing_threshold,
                       plural(options.max_post_steps, "post step"));
  };
  entry.refuses = [](const StrategySite& site) -> std::string {
    if (std::string why = refuse_edits(site); !why.empty()) return why;
    if (site.edit_tokens) return "";
    return "needs a checkpoint with delete_token_id and split_token_id (LLaDA2.2). HINT: "
           "joint_threshold edits tokens without them";
  };
  entry.select = [](StrategyStep& step) { return step.above_or_due(); };  // of the first step
  entry.edit = indel_edit;
  return entry;
}

}  // namespace blockscope
