#include "probe/verify/draft_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "command_line/interrupt.h"
#include "decode_record/base/text.h"
#include "probe/draft/draft_decoder.h"
#include "probe/policies/exact_policy.h"

namespace blockscope {
namespace {

/// Adds up the passes of a run by sequence. Requests nothing that would slow a pass down.
class PassWatch : public DecodeObserver {
 public:
  explicit PassWatch(bool drafted) : drafted_(drafted) {}

  bool looks_inside(const PassContext& /*context*/) const override { return false; }
  bool wants_every_prediction() const override { return false; }

  void on_pass(const PassResult& result) override {
    const double share = 1.0 / static_cast<double>(result.context.sequences.size());
    const double seconds = static_cast<double>(result.pass_ns) * 1e-9 * share;
    for (size_t s = 0; s < result.context.sequences.size(); ++s) {
      const SequencePass& pass = result.context.sequences[s];
      PromptRun& run = runs[pass.sequence];
      if (run.seconds.empty()) run.seconds.emplace_back();
      const StepDecision* decision = s < result.decisions.size() ? &result.decisions[s] : nullptr;
      add(pass.kind, decision, seconds, share, run);
    }
  }

  std::map<int64_t, PromptRun> runs;  // by sequence of the run; `generated` is not filled

 private:
  void add(PassKind kind, const StepDecision* decision, double seconds, double share,
           PromptRun& run) const {
    PassSeconds& times = run.seconds.front();
    if (kind == PassKind::prefill) {
      times.prefill += seconds;
      if (decision != nullptr && decision->next) ++run.prefill_tokens;
    } else if (drafted_ && kind == PassKind::denoise) {
      times.draft += seconds;
      run.draft_passes += share;
      run.accepted.push_back(std::ssize(decision->transferred));
    } else {
      times.target += seconds;
      run.target_passes += share;
      ++run.rounds;
    }
  }

  bool drafted_;
};

class DraftLoop {
 public:
  DraftLoop(const DraftRunsInput& input, const DraftProgress& progress)
      : input_(input), progress_(progress) {
    add_side(0);
    for (const int64_t length : input.block_lengths) add_side(length);
  }

  DraftRuns run() {
    for (DraftSide& side : sides_) decode(batch(0), side);  // warm-up, not counted
    const auto step = static_cast<size_t>(input_.batch_size);
    for (int64_t repetition = 0; repetition < input_.repeats; ++repetition) {
      for (size_t first = 0; first < input_.prompts.size(); first += step) {
        for (size_t turn = 0; turn < sides_.size(); ++turn) {
          DraftSide& side = sides_[(turn + static_cast<size_t>(repetition)) % sides_.size()];
          keep(decode(batch(first), side), side);
          tick();
        }
      }
    }
    DraftRuns result;
    result.alone = std::move(sides_.front());
    result.drafted.assign(std::move_iterator(sides_.begin() + 1), std::move_iterator(sides_.end()));
    return result;
  }

 private:
  void add_side(int64_t block_length) {
    DraftSide& side = sides_.emplace_back();
    side.block_length = block_length;
    side.prompts.resize(input_.prompts.size());
  }

  std::vector<DecodeRequest> batch(size_t first) const {
    return batch_requests(input_.prompts, first, input_.batch_size);
  }

  std::map<int64_t, PromptRun> decode(const std::vector<DecodeRequest>& requests,
                                      const DraftSide& side) const {
    const bool drafted = side.block_length > 0;
    PassWatch watch(drafted);
    DecodeCallbacks callbacks;
    callbacks.observer = &watch;
    callbacks.interrupted = [] { return InterruptGuard::signal() != 0; };
    const BlockDiffusionModel& target = *input_.target.model;
    const DecodeOptions& options = input_.alone;
    int64_t next_pass = 0;
    std::vector<DecodeOutcome> outcomes;
    if (drafted) {
      outcomes = decode_drafted({target, input_.draft, side.block_length, options.sampling,
                                 options.stop_ids, options.prefill_chunk},
                                requests, next_pass, callbacks);
    } else {
      const auto policy = make_exact_policy();
      outcomes = decode_batch(target, *policy, options, requests, next_pass, callbacks);
    }
    InterruptGuard::check();
    for (DecodeOutcome& outcome : outcomes) {
      watch.runs[outcome.sequence].generated = std::move(outcome.generated);
    }
    return std::move(watch.runs);
  }

  static void keep(std::map<int64_t, PromptRun> runs, DraftSide& side) {
    for (auto& [sequence, run] : runs) {
      PromptRun& prompt = side.prompts[static_cast<size_t>(sequence)];
      if (prompt.seconds.empty()) {
        prompt = std::move(run);
      } else {
        prompt.seconds.push_back(run.seconds.front());
      }
    }
  }

  void tick() {
    ++done_;
    const auto step = static_cast<size_t>(input_.batch_size);
    const auto batches = static_cast<double>((input_.prompts.size() + step - 1) / step);
    const double of_one = batches * static_cast<double>(sides_.size());
    const double share = done_ / (of_one * static_cast<double>(input_.repeats));
    progress_(share, fmt::format("{} decoded alone and drafted · repetition {}/{}",
                                 plural(std::ssize(input_.prompts), "prompt"),
                                 std::min(input_.repeats, static_cast<int64_t>(done_ / of_one) + 1),
                                 input_.repeats));
  }

  const DraftRunsInput& input_;
  const DraftProgress& progress_;
  std::vector<DraftSide> sides_;  // the target alone first
  double done_ = 0.0;             // batches
};

}  // namespace

PassSeconds& PassSeconds::operator+=(const PassSeconds& other) {
  prefill += other.prefill;
  draft += other.draft;
  target += other.target;
  return *this;
}

DraftRuns run_with_and_without(const DraftRunsInput& input, const DraftProgress& progress) {
  return DraftLoop(input, progress).run();
}

}  // namespace blockscope
