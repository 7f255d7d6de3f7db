#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analysis/metrics/decoding.h"
#include "decode_record/frames/token_changes.h"

namespace blockscope {
namespace {

constexpr std::int64_t kUnsettled = 0;

std::vector<double> count_from_one(std::size_t size) {
  std::vector<double> index;
  for (std::size_t i = 1; i <= size; ++i) index.push_back(static_cast<double>(i));
  return index;
}

std::vector<double> to_doubles(const std::vector<std::int64_t>& counts) {
  return {counts.begin(), counts.end()};
}

}  // namespace

DecodingTotals::DecodingTotals(std::vector<double> taus, ReuseCount count)
    : taus_(std::move(taus)), below_tau_(taus_.size(), 0) {
  for (const double tau : taus_) counters_.emplace_back(ReuseRule{tau, count});
}

RunningMean& DecodingTotals::at_step(Means& means, std::int64_t step) {
  const auto index = static_cast<std::size_t>(step - 1);
  if (means.size() <= index) means.resize(index + 1);
  return means[index];
}

/// Whether all steps of the block are in the trace: its last mask was decided, or decoding went on
/// or ended after the block.
bool DecodingTotals::ended(const TraceReader& trace, const BlockSteps& block,
                           FinishReason reason) const {
  if (reason == FinishReason::length || reason == FinishReason::stop ||
      reason == FinishReason::replayed) {
    return true;
  }
  const std::int64_t last = trace.rows_of(block.sequence).back();
  const StepColumns row = trace.steps(last, 1);
  return row.block[0] > block.block || row.kind[0] == static_cast<std::uint8_t>(PassKind::commit);
}

void DecodingTotals::add(const TraceReader& trace, const BlockSteps& block, bool autoregressive) {
  if (trace_ != &trace) {
    trace_ = &trace;
    prompt_length_.clear();
    finish_reason_.clear();
  }
  if (prompt_length_.count(block.sequence) == 0) {
    const SequenceInfo sequence = trace.sequence(block.sequence);
    prompt_length_[block.sequence] = static_cast<std::int64_t>(sequence.prompt.size());
    finish_reason_[block.sequence] = sequence.finish_reason;
    if (sequence.finish_reason == FinishReason::unfinished ||
        sequence.finish_reason == FinishReason::interrupted) {
      ++left_out_["sequences that did not end: no score"];
    } else if (!std::isfinite(sequence.score)) {
      ++left_out_["sequences without a score"];
    } else {
      accuracy_.add(static_cast<double>(sequence.score));
    }
  }
  if (block.steps.empty()) return;
  // Token by token, the pass over position p decides position p + 1.
  const std::int64_t origin =
      block.steps.front().block_start + (autoregressive ? 1 : 0) - prompt_length_[block.sequence];
  const auto length = static_cast<std::size_t>(trace.info().meta.block_length);
  Course course{origin, std::vector(length, trace.info().meta.undecided_token()),
                std::vector(length, kUnsettled)};
  for (const StepRef& step : block.steps) add_step(trace, step, course);
  for (std::size_t p = 0; p < length; ++p) {
    if (course.settled_at[p] == kUnsettled) continue;
    const auto index = static_cast<std::size_t>(course.settled_at[p] - 1);
    if (settled_.size() <= index) settled_.resize(index + 1, std::vector<std::int64_t>(length, 0));
    ++settled_[index][p];
  }
  if (!ended(trace, block, finish_reason_[block.sequence])) {
    ++left_out_["blocks cut off: not in steps per block"];
    return;
  }
  const std::size_t steps = block.steps.size();
  steps_.add(static_cast<double>(steps));
  if (blocks_by_steps_.size() < steps) blocks_by_steps_.resize(steps, 0);
  ++blocks_by_steps_[steps - 1];
}

void DecodingTotals::add_token(std::int64_t step, float confidence) {
  confidence_.add(static_cast<double>(confidence));
  at_step(confidence_by_step_, step).add(static_cast<double>(confidence));
}

void DecodingTotals::add_step(const TraceReader& trace, const StepRef& step, Course& course) {
  const std::int64_t mask = trace.info().meta.undecided_token();
  const std::int64_t end = course.origin + std::ssize(course.tokens);
  std::int64_t decided = 0;
  std::array<std::int64_t, 4> edits{};
  for (const SequenceDelta& part : trace.delta(step.row).rows) {
    for (std::size_t i = 0; i < part.transfer_index.size(); ++i) {
      const auto source = static_cast<std::size_t>(
          part.transfer_src_index.empty() ? part.transfer_index[i] : part.transfer_src_index[i]);
      const bool has_source = part.confidence.empty() || source < part.confidence.size();
      if (part.transfer_index[i] < 0 || !has_source) {
        throw CorruptTrace(fmt::format(
            "{}: row {}: expected positions of at least 0 with a confidence each, got position {}. "
            "HINT: the file is damaged.",
            trace.info().path, step.row, part.transfer_index[i]));
      }
      const bool inside = part.transfer_index[i] >= course.origin && part.transfer_index[i] < end;
      const bool masks =
          leaves_undecided(part, i) || (mask >= 0 && part.decoded_tokens.at(source) == mask);
      if (inside || masks) continue;
      ++decided;
      add_token(step.step, part.confidence.empty() ? 0.0F : part.confidence[source]);
      ++left_out_["tokens decided outside the block"];
    }
    const StepChanges changes = follow_delta(course.tokens, course.origin, part, mask, end);
    course.tokens.resize(course.settled_at.size(), mask);
    for (const TokenChange& change : changes.changes) {
      const auto at = static_cast<std::size_t>(change.position - course.origin);
      if (at >= course.settled_at.size()) continue;
      course.settled_at[at] = change.after == mask ? kUnsettled : step.step;
      if (change.kind == ChangeKind::decided) add_token(step.step, change.confidence);
    }
    decided += changes.decided;
    const std::array now{changes.edited, changes.taken_back, changes.inserted, changes.deleted};
    for (std::size_t kind = 0; kind < edits.size(); ++kind) edits[kind] += now[kind];
  }
  for (std::size_t kind = 0; kind < edits.size(); ++kind) {
    at_step(edits_by_step_[kind], step.step).add(static_cast<double>(edits[kind]));
  }
  at_step(masks_by_step_, step.step).add(static_cast<double>(step.masks_left));
  tokens_.add(static_cast<double>(decided));
  at_step(tokens_by_step_, step.step).add(static_cast<double>(decided));
  for (std::size_t t = 0; t < taus_.size(); ++t) {
    below_tau_[t] += counters_[t].reuses(step.step, step.changed, step.decided) ? 1 : 0;
  }
  if (step.step <= 1) return;
  ++later_steps_;
  changed_.add(static_cast<double>(step.changed));
  at_step(changed_by_step_, step.step).add(static_cast<double>(step.changed));
}

ResultArray DecodingTotals::by_step(const Means& means, std::string name, std::string unit,
                                    std::string description) {
  ResultArray array{std::move(name),
                    std::move(unit),
                    std::move(description),
                    {{"step", count_from_one(means.size()), {}}},
                    {},
                    {}};
  for (const RunningMean& mean : means) {
    array.values.push_back(mean.mean());
    array.terms.push_back(mean.terms());
  }
  return array;
}

ResultArray DecodingTotals::tokens_by_step() const {
  return by_step(tokens_by_step_, "tokens_by_step", "tokens", "tokens decided at a step");
}

ResultArray DecodingTotals::confidence_by_step() const {
  return by_step(confidence_by_step_, "confidence_by_step", "probability",
                 "confidence of the tokens decided at a step");
}

ResultArray DecodingTotals::changed_by_step() const {
  return by_step(changed_by_step_, "changed_by_step", "tokens",
                 "M: inputs of the block that differ from the previous step");
}

ResultArray DecodingTotals::masks_by_step() const {
  return by_step(masks_by_step_, "masks_by_step", "masks", "masks in the block before a step");
}

ResultArray DecodingTotals::edits_by_step() const {
  constexpr std::array kKinds{"tokens edited", "tokens taken back", "positions inserted",
                              "positions deleted"};
  const std::size_t steps = edits_by_step_.front().size();
  ResultArray array{"edits_by_step",
                    "count",
                    "changes of a step other than decided tokens",
                    {{"kind", {}, {}}, {"step", count_from_one(steps), {}}},
                    {},
                    {}};
  for (std::size_t kind = 0; kind < kKinds.size(); ++kind) {
    const Means& means = edits_by_step_[kind];
    if (std::ranges::all_of(means, [](const RunningMean& mean) { return mean.mean() == 0.0; })) {
      continue;
    }
    array.axes[0].labels.emplace_back(kKinds[kind]);
    for (const RunningMean& mean : means) {
      array.values.push_back(mean.mean());
      array.terms.push_back(mean.terms());
    }
  }
  return array;
}

ResultArray DecodingTotals::share_below_tau() const {
  ResultArray array{
      "share_below_tau",    "share", "denoising steps after a block's first that may reuse by tau",
      {{"tau", taus_, {}}}, {},      {}};
  for (const std::int64_t below : below_tau_) {
    array.values.push_back(static_cast<double>(below) / static_cast<double>(later_steps_));
    array.terms.push_back(later_steps_);
  }
  return array;
}

ResultArray DecodingTotals::blocks_by_steps() const {
  return {"blocks_by_steps",
          "count",
          "blocks by their number of denoising steps",
          {{"steps", count_from_one(blocks_by_steps_.size()), {}}},
          to_doubles(blocks_by_steps_),
          {}};
}

ResultArray DecodingTotals::settled(std::int64_t block_length) const {
  ResultAxis positions{"position", {}, {}};
  for (std::int64_t p = 0; p < block_length; ++p) {
    positions.index.push_back(static_cast<double>(p));
  }
  ResultArray array{"settled",
                    "count",
                    "positions of a block by the step of their final token",
                    {{"step", count_from_one(settled_.size()), {}}, positions},
                    {},
                    {}};
  for (const auto& row : settled_) {
    array.values.insert(array.values.end(), row.begin(), row.end());
  }
  return array;
}

}  // namespace blockscope
