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
struct Arm {
  const PolicySetting* setting = nullptr;
  FreeRun run;
  std::vector<SequenceRun> sequences;    // by prompt, of the first repetition
  std::vector<StepTime> steps;           // of all repetitions
  std::unique_ptr<FidelityMeter> meter;  // null: exact
  std::optional<ExternalReads> predicted;
};

/// The same policy, whatever file its mask came from.
bool same_policy(const PolicySetting& a, const PolicySetting& b) {
  if (a.reuse.has_value() != b.reuse.has_value()) return false;
  if (!a.reuse.has_value()) return a.policy == b.policy;
  return a.reuse->tau == b.reuse->tau && a.reuse->reuse == b.reuse->reuse;
}

class VerifyLoop {
 public:
  VerifyLoop(const VerifyInput& input, const PolicySetting& reference,
             const std::vector<PolicySetting>& settings, const VerifyProgress& progress)
      : input_(input), settings_(settings), progress_(progress) {
    const ModelConfig& config = input.model.config;
    shape_ = {config.num_layers, config.num_heads, config.num_kv_heads};
    add_arm(reference);
    for (const PolicySetting& setting : settings) {
      const auto same = std::find_if(arms_.begin() + 1, arms_.end(), [&](const Arm& arm) {
        return same_policy(*arm.setting, setting);
      });
      arm_of_.push_back(static_cast<size_t>(same - arms_.begin()));
      if (same == arms_.end()) add_arm(setting);
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
  void add_arm(const PolicySetting& setting) {
    Arm arm;
    arm.setting = &setting;
    arm.run.reads = ExternalReads(shape_);
    arm.run.times.attention.resize(static_cast<size_t>(input_.repeats));
    arm.run.times.total.resize(static_cast<size_t>(input_.repeats));
    arm.sequences.resize(input_.prompts.size());
    if (!setting.exact()) {
      arm.meter = std::make_unique<FidelityMeter>(shape_);
      arm.predicted = ExternalReads(shape_);
      ++replays_;
    }
    arms_.push_back(std::move(arm));
  }

  /// Adds what the rule says of one sequence's passes, as long as it says something of all of them.
  void predict(const std::vector<PassRow>& rows, Arm& arm) const {
    if (!arm.predicted) return;
    const PolicySetting& setting = *arm.setting;
    const std::optional<ExternalReads> reads =
        setting.reuse.has_value()
            ? predicted_reads(rows, setting.reuse->tau, setting.reuse->reuse, shape_)
            : predicted_set_reads(rows, setting.policy, shape_);
    if (reads) {
      *arm.predicted += *reads;
    } else {
      arm.predicted.reset();
    }
  }

  /// Every repetition starts with another arm, so that none is always the one that warms up.
  void decode_freely(const std::vector<DecodeRequest>& requests) {
    for (int64_t repetition = 0; repetition < input_.repeats; ++repetition) {
      for (size_t turn = 0; turn < arms_.size(); ++turn) {
        const size_t index = (turn + static_cast<size_t>(repetition)) % arms_.size();
        decode_once(requests, repetition, arms_[index]);
        tick(static_cast<double>(requests.size()), "decoding");
      }
    }
  }

  void decode_once(const std::vector<DecodeRequest>& requests, int64_t repetition, Arm& arm) {
    FreeRunObserver observer(input_.decode, shape_);
    DecodeCallbacks callbacks;
    callbacks.observer = &observer;
    callbacks.interrupted = interrupted;
    const auto policy = make_policy(*arm.setting, input_.model);
    int64_t next_pass = 0;
    const std::vector<DecodeOutcome> outcomes =
        decode_batch(*input_.model.model, *policy, input_.decode, requests, next_pass, callbacks);
    InterruptGuard::check();
    const size_t r = static_cast<size_t>(repetition);
    arm.run.times.attention[r] += static_cast<double>(observer.attention_ns) * 1e-9;
    arm.run.times.total[r] += static_cast<double>(observer.total_ns) * 1e-9;
    arm.steps.insert(arm.steps.end(), observer.steps.begin(), observer.steps.end());
    if (repetition > 0) return;
    arm.run.times.block_passes += observer.block_passes;
    arm.run.denoising_steps += observer.denoising_steps;
    arm.run.tokens += observer.tokens;
    arm.run.reads += observer.reads;
    for (const DecodeOutcome& outcome : outcomes) {
      SequenceRun& sequence = arm.sequences[static_cast<size_t>(outcome.sequence)];
      sequence = std::move(observer.sequences[outcome.sequence]);
      sequence.generated = outcome.generated;
    }
  }

  void replay(const std::vector<DecodeRequest>& requests) {
    std::vector<DecodeRequest> replayed = requests;
    const std::vector<SequenceRun>& reference = arms_.front().sequences;
    for (DecodeRequest& request : replayed) {
      request.replayed = true;
      request.replay = reference[static_cast<size_t>(request.sequence)].steps;
    }
    for (Arm& arm : arms_) {
      if (arm.meter == nullptr) continue;
      const auto policy = make_policy(*arm.setting, input_.model);
      replay_in_lockstep(*input_.model.model, *policy, input_.decode, replayed, *arm.meter,
                         interrupted);
      InterruptGuard::check();
      for (const DecodeRequest& request : replayed) {
        predict(reference[static_cast<size_t>(request.sequence)].rows, arm);
      }
      tick(kReplayCost * static_cast<double>(requests.size()), "replaying");
    }
  }

  /// `cost` in decoded prompts.
  void tick(double cost, const char* what) {
    done_ += cost;
    const double arms = static_cast<double>(arms_.size());
    const double prompts = static_cast<double>(input_.prompts.size());
    const double total =
        prompts * (arms * static_cast<double>(input_.repeats) + replays_ * kReplayCost);
    const double share = done_ / total;
    progress_(share,
              fmt::format("{} · {:.0f}/{} prompts, {} setting{}", what, std::floor(share * prompts),
                          prompts, arms_.size() - 1, arms_.size() == 2 ? "" : "s"));
  }

  std::vector<double> scores_of(const Arm& arm) const {
    std::vector<double> scores;
    for (size_t i = 0; i < input_.prompts.size(); ++i) {
      const RunPrompt& prompt = input_.prompts[i];
      scores.push_back(
          prompt.metric.has_value()
              ? score(*prompt.metric,
                      generated_text(arm.sequences[i].generated, input_.decode, input_.tokenizer),
                      prompt.answers)
              : kNaN);
    }
    return scores;
  }

  /// Half-octaves of context length: fine enough for a curve, coarse enough for a median.
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

  PolicyResult by_itself(const PolicySetting& setting, const Arm& arm) const {
    PolicyResult result;
    result.setting = setting;
    result.run = arm.run;
    if (arm.meter != nullptr) result.fidelity = arm.meter->result();
    result.predicted = arm.predicted;
    return result;
  }

  SettingResult beside_reference(const PolicySetting& setting, const Arm& arm) const {
    const Arm& reference = arms_.front();
    SettingResult result;
    static_cast<PolicyResult&>(result) = by_itself(setting, arm);
    result.scores = paired_scores(reference.run.scores, arm.run.scores);
    for (size_t i = 0; i < input_.prompts.size(); ++i) {
      const SequenceRun& a = reference.sequences[i];
      const SequenceRun& b = arm.sequences[i];
      compare_tokens(a.generated, b.generated, input_.decode.stop_ids, result.agreement);
      const auto length = static_cast<int64_t>(input_.prompts[i].request.prompt.size());
      const auto divergence = first_divergence(a.steps, b.steps, length);
      if (divergence) result.divergences.push_back(*divergence);
    }
    std::vector<double> ratios;
    for (size_t r = 0; r < arm.run.times.attention.size(); ++r) {
      ratios.push_back(reference.run.times.attention[r] /
                       static_cast<double>(reference.run.times.block_passes) /
                       std::max(arm.run.times.attention[r], 1e-12) *
                       static_cast<double>(arm.run.times.block_passes));
    }
    result.attention_speedup = spread_of(std::move(ratios));
    return result;
  }

  VerifyResult finish() {
    for (Arm& arm : arms_) {
      arm.run.scores = scores_of(arm);
      arm.run.context_times = binned(arm.steps);
    }
    VerifyResult result;
    result.prompts = static_cast<int64_t>(input_.prompts.size());
    result.reference = by_itself(*arms_.front().setting, arms_.front());
    for (size_t i = 0; i < settings_.size(); ++i) {
      result.settings.push_back(beside_reference(settings_[i], arms_[arm_of_[i]]));
    }
    return result;
  }

  // A replay decodes twice, with the exact attention beside the policy.
  static constexpr double kReplayCost = 2.5;

  const VerifyInput& input_;
  const std::vector<PolicySetting>& settings_;
  const VerifyProgress& progress_;
  ReadShape shape_;
  std::vector<Arm> arms_;       // the reference first
  std::vector<size_t> arm_of_;  // by setting
  double replays_ = 0.0;        // arms that are not exact
  double done_ = 0.0;
};

}  // namespace

int64_t ReuseSetting::heads() const {
  int64_t count = 0;
  for (const std::vector<bool>& layer : reuse)
    count += std::count(layer.begin(), layer.end(), true);
  return count;
}

VerifyResult verify_policies(const VerifyInput& input, const PolicySetting& reference,
                             const std::vector<PolicySetting>& settings,
                             const VerifyProgress& progress) {
  return VerifyLoop(input, reference, settings, progress).run();
}

}  // namespace blockscope
