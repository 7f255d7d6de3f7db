#include "probe/verify/verify_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "command_line/interrupt.h"
#include "decode_record/base/error.h"
#include "decode_record/base/nan.h"
#include "probe/verify/free_run.h"
#include "probe/verify/verify_settings.h"

namespace blockscope {
namespace {

bool interrupted() { return InterruptGuard::signal() != 0; }

/// Everything collected about one policy.
struct PolicyRun {
  const PolicySetting* setting = nullptr;
  FreeRun run;
  std::vector<SequenceRun> sequences;    // by prompt, of the first repetition
  std::vector<StepTime> steps;           // of all repetitions
  std::unique_ptr<FidelityMeter> meter;  // null: exact
  std::optional<ExternalReads> predicted;
};

/// Whether two settings have the same policy and mask, from whatever file.
bool same_policy(const PolicySetting& a, const PolicySetting& b) {
  if (a.reuse.has_value() != b.reuse.has_value()) return false;
  if (!a.reuse.has_value()) return a.policy == b.policy;
  return a.reuse->rule() == b.reuse->rule() && a.reuse->reuse == b.reuse->reuse &&
         a.policy.bound == b.policy.bound && a.policy.sure == b.policy.sure &&
         a.policy.interventions == b.policy.interventions;
}

class VerifyLoop {
 public:
  VerifyLoop(const VerifyInput& input, const PolicySetting& reference,
             const std::vector<PolicySetting>& settings, const VerifyProgress& progress)
      : input_(input), settings_(settings), progress_(progress) {
    const ModelConfig& config = input.model.config;
    shape_ = layer_sizes(config);
    add_run(reference);
    for (const PolicySetting& setting : settings) {
      const auto same = std::find_if(runs_.begin() + 1, runs_.end(), [&](const PolicyRun& one) {
        return same_policy(*one.setting, setting);
      });
      run_of_.push_back(static_cast<size_t>(same - runs_.begin()));
      if (same == runs_.end()) add_run(setting);
    }
  }

  VerifyResult run() {
    const size_t batch = static_cast<size_t>(input_.batch_size);
    for (size_t first = 0; first < input_.prompts.size(); first += batch) {
      const size_t last = std::min(input_.prompts.size(), first + batch);
      std::vector<DecodeRequest> requests;
      for (size_t i = first; i < last; ++i) requests.push_back(input_.prompts[i].request);
      decode_freely(requests);
      replay(requests);
    }
    return finish();
  }

 private:
  void add_run(const PolicySetting& setting) {
    PolicyRun one;
    one.setting = &setting;
    one.run.reads = ExternalReads(shape_);
    one.run.times.attention.resize(static_cast<size_t>(input_.repeats));
    one.run.times.total.resize(static_cast<size_t>(input_.repeats));
    one.sequences.resize(input_.prompts.size());
    if (!setting.exact()) {
      one.meter = std::make_unique<FidelityMeter>(shape_);
      // With `sure`, the reads depend on the policy's own probabilities.
      const bool has_rule = setting.policy.policy != "exact" && !setting.policy.sure;
      if (has_rule) one.predicted = ExternalReads(shape_);
      ++replays_;
    }
    runs_.push_back(std::move(one));
  }

  /// Adds the rule's prediction for one sequence's passes. One unknown makes the sum unknown.
  void predict(const std::vector<PassRow>& rows, PolicyRun& one) const {
    if (!one.predicted) return;
    const PolicySetting& setting = *one.setting;
    const std::optional<ExternalReads> reads =
        setting.reuse.has_value()
            ? predicted_reads(rows, setting.reuse->rule(), setting.reuse->reuse, shape_,
                              setting.reuse->bound)
            : predicted_set_reads(rows, setting.policy, shape_);
    if (reads) {
      *one.predicted += *reads;
    } else {
      one.predicted.reset();
    }
  }

  /// Every repetition starts with another policy, so that the warm-up does not always hit the same.
  void decode_freely(const std::vector<DecodeRequest>& requests) {
    for (int64_t repetition = 0; repetition < input_.repeats; ++repetition) {
      for (size_t turn = 0; turn < runs_.size(); ++turn) {
        const size_t index = (turn + static_cast<size_t>(repetition)) % runs_.size();
        decode_once(requests, repetition, runs_[index]);
        tick(static_cast<double>(requests.size()), "decoding");
      }
    }
  }

  void decode_once(const std::vector<DecodeRequest>& requests, int64_t repetition, PolicyRun& one) {
    FreeRunObserver observer(input_.decode, shape_);
    DecodeCallbacks callbacks;
    callbacks.observer = &observer;
    callbacks.interrupted = interrupted;
    const auto policy = make_policy(*one.setting, input_.model);
    int64_t next_pass = 0;
    const std::vector<DecodeOutcome> outcomes =
        decode_batch(*input_.model.model, *policy, input_.decode, requests, next_pass, callbacks);
    InterruptGuard::check();
    const size_t r = static_cast<size_t>(repetition);
    one.run.times.attention[r] += static_cast<double>(observer.attention_ns) * 1e-9;
    one.run.times.total[r] += static_cast<double>(observer.total_ns) * 1e-9;
    one.steps.insert(one.steps.end(), observer.steps.begin(), observer.steps.end());
    if (repetition > 0) return;
    one.run.times.block_passes += observer.block_passes;
    one.run.denoising_steps += observer.denoising_steps;
    one.run.tokens += observer.tokens;
    one.run.reads += observer.reads;
    for (const DecodeOutcome& outcome : outcomes) {
      SequenceRun& sequence = one.sequences[static_cast<size_t>(outcome.sequence)];
      sequence = std::move(observer.sequences[outcome.sequence]);
      sequence.generated = outcome.generated;
    }
  }

  void replay(const std::vector<DecodeRequest>& requests) {
    std::vector<DecodeRequest> replayed = requests;
    const std::vector<SequenceRun>& reference = runs_.front().sequences;
    for (DecodeRequest& request : replayed) {
      replay_of(reference[static_cast<size_t>(request.sequence)], request);
    }
    for (PolicyRun& one : runs_) {
      if (one.meter == nullptr) continue;
      const auto policy = make_policy(*one.setting, input_.model);
      replay_in_lockstep(*input_.model.model, *input_.model.model, *policy, input_.decode, replayed,
                         *one.meter, interrupted);
      InterruptGuard::check();
      for (const DecodeRequest& request : replayed) {
        predict(reference[static_cast<size_t>(request.sequence)].rows, one);
      }
      tick(kReplayCost * static_cast<double>(requests.size()), "replaying");
    }
  }

  /// `cost` in decoded prompts.
  void tick(double cost, const char* what) {
    done_ += cost;
    const double runs = static_cast<double>(runs_.size());
    const double prompts = static_cast<double>(input_.prompts.size());
    const double total =
        prompts * (runs * static_cast<double>(input_.repeats) + replays_ * kReplayCost);
    const double share = done_ / total;
    progress_(share,
              fmt::format("{} · {:.0f}/{} prompts, {} setting{}", what, std::floor(share * prompts),
                          prompts, runs_.size() - 1, runs_.size() == 2 ? "" : "s"));
  }

  std::vector<double> scores_of(const PolicyRun& one) const {
    std::vector<double> scores;
    for (size_t i = 0; i < input_.prompts.size(); ++i) {
      const RunPrompt& prompt = input_.prompts[i];
      scores.push_back(
          prompt.metric.has_value()
              ? score(*prompt.metric,
                      generated_text(one.sequences[i].generated, input_.decode, input_.tokenizer),
                      prompt.answers)
              : kNaN);
    }
    return scores;
  }

  /// Groups by half-octaves of context length: fine enough for a curve, coarse enough for a median.
  static std::vector<ContextTime> binned(const std::vector<StepTime>& steps) {
    std::map<int64_t, std::vector<StepTime>> bins;
    for (const StepTime& step : steps) {
      bins[std::llround(2.0 * std::log2(step.context_length + 1.0))].push_back(step);
    }
    std::vector<ContextTime> times;
    for (const auto& [bin, members] : bins) {
      ContextTime time;
      std::vector<double> milliseconds;
      for (const StepTime& step : members) {
        time.context_length += step.context_length / static_cast<double>(members.size());
        time.keys_read += step.keys_read / static_cast<double>(members.size());
        milliseconds.push_back(step.milliseconds);
      }
      time.milliseconds = spread_of(std::move(milliseconds));
      time.steps = static_cast<int64_t>(members.size());
      times.push_back(time);
    }
    return times;
  }

  PolicyResult by_itself(const PolicySetting& setting, const PolicyRun& one) const {
    PolicyResult result;
    result.setting = setting;
    result.run = one.run;
    if (one.meter != nullptr) result.fidelity = one.meter->result();
    result.predicted = one.predicted;
    return result;
  }

  SettingResult beside_reference(const PolicySetting& setting, const PolicyRun& one) const {
    const PolicyRun& reference = runs_.front();
    SettingResult result;
    static_cast<PolicyResult&>(result) = by_itself(setting, one);
    result.scores = paired_scores(reference.run.scores, one.run.scores);
    for (size_t i = 0; i < input_.prompts.size(); ++i) {
      const SequenceRun& a = reference.sequences[i];
      const SequenceRun& b = one.sequences[i];
      compare_tokens(a.generated, b.generated, input_.decode.stop_ids, result.agreement);
      const auto length = static_cast<int64_t>(input_.prompts[i].request.prompt.size());
      const auto divergence = first_divergence(a.steps, b.steps, length);
      if (divergence) result.divergences.push_back(*divergence);
    }
    std::vector<double> ratios;
    for (size_t r = 0; r < one.run.times.attention.size(); ++r) {
      ratios.push_back(reference.run.times.attention[r] /
                       static_cast<double>(reference.run.times.block_passes) /
                       std::max(one.run.times.attention[r], 1e-12) *
                       static_cast<double>(one.run.times.block_passes));
    }
    result.attention_speedup = spread_of(std::move(ratios));
    return result;
  }

  VerifyResult finish() {
    for (PolicyRun& one : runs_) {
      one.run.scores = scores_of(one);
      one.run.context_times = binned(one.steps);
    }
    VerifyResult result;
    result.prompts = static_cast<int64_t>(input_.prompts.size());
    result.reference = by_itself(*runs_.front().setting, runs_.front());
    for (size_t i = 0; i < settings_.size(); ++i) {
      result.settings.push_back(beside_reference(settings_[i], runs_[run_of_[i]]));
    }
    return result;
  }

  // A replay decodes twice: with exact attention and with the policy.
  static constexpr double kReplayCost = 2.5;

  const VerifyInput& input_;
  const std::vector<PolicySetting>& settings_;
  const VerifyProgress& progress_;
  LayerSizes shape_;
  std::vector<PolicyRun> runs_;  // the reference first
  std::vector<size_t> run_of_;   // by setting
  double replays_ = 0.0;         // runs that are not exact
  double done_ = 0.0;
};

}  // namespace

int64_t ReuseSetting::heads() const {
  int64_t heads = 0;
  for (const HeadMatrix<bool>& range : reuse.heads) {
    for (const std::vector<bool>& layer : range) {
      heads += std::count(layer.begin(), layer.end(), true);
    }
  }
  return heads;
}

VerifyResult verify_policies(const VerifyInput& input, const PolicySetting& reference,
                             const std::vector<PolicySetting>& settings,
                             const VerifyProgress& progress) {
  return VerifyLoop(input, reference, settings, progress).run();
}

}  // namespace blockscope
