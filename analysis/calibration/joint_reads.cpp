#include "analysis/calibration/joint_reads.h"

#include <map>

#include "analysis/pass/block_index.h"
#include "decode_record/schema/reuse_rule.h"

namespace blockscope {
namespace {

constexpr std::size_t kSums = kPairSums;

/// The steps of one pass, one for each of its sequences.
struct PassSteps {
  std::vector<const StepRef*> steps;
  std::int32_t step = 0;
  bool recorded = true;
};

std::map<std::int64_t, PassSteps> by_pass(const TraceReader& trace,
                                          const std::vector<BlockSteps>& blocks) {
  const StepColumns columns = trace.steps(0, trace.info().num_rows);
  std::map<std::int64_t, PassSteps> passes;
  for (const BlockSteps& block : blocks) {
    for (const StepRef& step : block.steps) {
      PassSteps& pass = passes[columns.pass[static_cast<std::size_t>(step.row)]];
      pass.steps.push_back(&step);
      pass.step = step.step;
      pass.recorded = pass.recorded && step.recorded;
    }
  }
  return passes;
}

}  // namespace

JointReads::JointReads(const TraceReader& trace, const ProvisionalMask& mask) {
  const TraceMeta& meta = trace.info().meta;
  heads_ = meta.heads.size();
  cells_ = meta.layers.size() * heads_;
  steps_.assign(static_cast<std::size_t>(trace.info().num_rows) * cells_, 0);
  const std::vector<BlockSteps> blocks = list_blocks(trace);
  struct Held {
    std::vector<std::int32_t> steps;  // [layer, head]
    std::int32_t expected = 1;        // the next step
  };
  std::map<std::int64_t, Held> of_batch;  // by its first sequence
  for (const auto& [number, pass] : by_pass(trace, blocks)) {
    Held& batch = of_batch[pass.steps.front()->sequence];
    std::vector<std::int32_t>& held = batch.steps;
    if (pass.step == 1) {
      held.assign(cells_, 1);
    } else if (pass.step != batch.expected || !pass.recorded) {
      held.assign(cells_, 0);  // a gap hides what the heads read
    }
    batch.expected = pass.step + 1;
    if (pass.step == 1) continue;
    std::vector<std::vector<float>> sums;  // [earlier step, layer, head, sum] of each sequence
    for (const StepRef* step : pass.steps) {
      sums.push_back(trace.read_floats(Field::step_pair, step->row, 1));
    }
    for (std::size_t cell = 0; cell < cells_; ++cell) {
      if (held[cell] < 1 || held[cell] > meta.pair_steps) continue;
      const std::size_t at = (static_cast<std::size_t>(held[cell] - 1) * cells_ + cell) * kSums;
      double rows = 0.0;
      double cosine = 0.0;
      double drift = 0.0;
      for (std::size_t i = 0; i < sums.size(); ++i) {
        steps_[static_cast<std::size_t>(pass.steps[i]->row) * cells_ + cell] = held[cell];
        rows += sums[i][at];
        cosine += sums[i][at + 1];
        drift += sums[i][at + 2];
      }
      const bool reuses =
          cosine / rows > mask.gamma && (!mask.lse_bound || drift / rows <= *mask.lse_bound);
      if (!reuses) held[cell] = pass.step;
    }
  }
}

}  // namespace blockscope
