#include "analysis/metrics/kept_steps.h"

#include <stdexcept>

#include "decode_record/frames/frame_delta.h"

namespace blockscope {
namespace {

/// A block's input before a step, [B] each. Positions outside the answer never change: those of the
/// prompt are decided, those after its end are not.
struct BlockInput {
  std::vector<std::int64_t> tokens;
  std::vector<bool> undecided;
};
BlockInput block_input(const Frame& frame, std::int64_t origin, std::size_t length) {
  BlockInput input{std::vector<std::int64_t>(length, -1), std::vector<bool>(length, false)};
  for (std::size_t i = 0; i < length; ++i) {
    const std::int64_t position = origin + static_cast<std::int64_t>(i);
    if (position < 0) continue;
    const auto at = static_cast<std::size_t>(position);
    input.undecided[i] = at >= frame.gen_length || frame.undecided(at);
    if (at < frame.gen_length) input.tokens[i] = frame.generated_tokens[at];
  }
  return input;
}

}  // namespace

void KeptSteps::begin_trace(const TraceReader& trace) {
  trace_ = &trace;
  block_length_ = static_cast<std::size_t>(trace.info().meta.block_length);
  place_.assign(static_cast<std::size_t>(trace.info().num_rows), -1);
  ages_.clear();
  kinds_.clear();
}

void KeptSteps::add_block(const BlockSteps& block) {
  if (block.steps.empty()) return;
  Frame frame = trace_->frame_before(block.steps.front().row);
  const auto prompt = static_cast<std::int64_t>(frame.prompts.at(0).size());
  std::vector<KeptCounter> pairs(rules_.begin(), rules_.end());
  std::vector<std::int64_t> last;
  for (const StepRef& step : block.steps) {
    const BlockInput input = block_input(frame, step.block_start - prompt, block_length_);
    std::vector<bool> changed(block_length_);
    for (std::size_t i = 0; i < block_length_; ++i) {
      changed[i] = !last.empty() && input.tokens[i] != last[i];
    }
    last = input.tokens;
    place_.at(static_cast<std::size_t>(step.row)) =
        static_cast<std::int64_t>(ages_.size() / rules_.size());
    for (KeptCounter& pair : pairs) {
      pair.reuses(step.step, step.changed, step.decided, input.undecided, changed);
      ages_.push_back(static_cast<std::int32_t>(pair.age()));
      kinds_.insert(kinds_.end(), pair.kinds().begin(), pair.kinds().end());
    }
    apply_delta(frame, trace_->delta(step.row));
  }
}

std::size_t KeptSteps::cell(const StepRef& step, std::size_t rule) const {
  const std::int64_t place = place_.at(static_cast<std::size_t>(step.row));
  if (place < 0) throw std::logic_error("KeptSteps: a step of a block that was not added");
  return static_cast<std::size_t>(place) * rules_.size() + rule;
}

std::int64_t KeptSteps::age(const StepRef& step, std::size_t rule) const {
  return ages_[cell(step, rule)];
}

std::span<const std::uint8_t> KeptSteps::kinds(const StepRef& step, std::size_t rule) const {
  return std::span(kinds_).subspan(cell(step, rule) * block_length_, block_length_);
}

}  // namespace blockscope
