#include "probe/verify/draft_gain.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "analysis/metrics/draft_rounds.h"
#include "decode_record/base/nan.h"

namespace blockscope {
namespace {

double ratio(double part, double whole) { return whole > 0.0 ? part / whole : kNaN; }

/// One side's sums over some prompts.
struct Sums {
  int64_t tokens = 0;          // of the answers
  int64_t decoded_tokens = 0;  // of them decided after the prefill
  int64_t rounds = 0;
  double draft_passes = 0.0, target_passes = 0.0;
  std::vector<PassSeconds> seconds;  // by repetition
};

Sums sums_of(const DraftSide& side, const std::vector<size_t>& prompts,
             const std::vector<int64_t>& stop_ids) {
  Sums sums;
  for (const size_t index : prompts) {
    const PromptRun& run = side.prompts[index];
    const auto tokens = static_cast<int64_t>(answer_length(run.generated, stop_ids));
    sums.tokens += tokens;
    sums.decoded_tokens += std::max<int64_t>(tokens - run.prefill_tokens, 0);
    sums.rounds += run.rounds;
    sums.draft_passes += run.draft_passes;
    sums.target_passes += run.target_passes;
    sums.seconds.resize(std::max(sums.seconds.size(), run.seconds.size()));
    for (size_t r = 0; r < run.seconds.size(); ++r) sums.seconds[r] += run.seconds[r];
  }
  return sums;
}

/// The spread of one number per repetition; NaN if one of them is NaN.
template <typename Number>
Spread over_repetitions(size_t repeats, const Number& number) {
  std::vector<double> values;
  for (size_t r = 0; r < repeats; ++r) values.push_back(number(r));
  return spread_of(std::move(values));
}

void add_times(const Sums& alone, const Sums& drafted, DraftGain& gain) {
  const auto spread = [&](const auto& number) {
    return over_repetitions(alone.seconds.size(),
                            [&](size_t r) { return number(alone.seconds[r], drafted.seconds[r]); });
  };
  const auto speed = [](const Sums& side, const PassSeconds& seconds) {
    return side.decoded_tokens == 0
               ? kNaN
               : ratio(static_cast<double>(side.decoded_tokens), seconds.decoding());
  };
  using Seconds = const PassSeconds&;
  gain.alone_speed = spread([&](Seconds a, Seconds) { return speed(alone, a); });
  gain.drafted_speed = spread([&](Seconds, Seconds d) { return speed(drafted, d); });
  gain.speedup = spread([&](Seconds a, Seconds d) { return speed(drafted, d) / speed(alone, a); });
  gain.answer_speedup = spread([](Seconds a, Seconds d) { return ratio(a.total(), d.total()); });
  gain.alone_seconds = spread([](Seconds a, Seconds) { return a.total(); });
  gain.drafted_seconds = spread([](Seconds, Seconds d) { return d.total(); });
  gain.alone_prefill = spread([](Seconds a, Seconds) { return a.prefill; });
  gain.drafted_prefill = spread([](Seconds, Seconds d) { return d.prefill; });
  gain.draft_share = spread([](Seconds, Seconds d) { return ratio(d.draft, d.decoding()); });
  gain.alone_ms =
      spread([&](Seconds a, Seconds) { return 1e3 * ratio(a.target, alone.target_passes); });
  gain.verification_ms =
      spread([&](Seconds, Seconds d) { return 1e3 * ratio(d.target, drafted.target_passes); });
  gain.draft_ms =
      spread([&](Seconds, Seconds d) { return 1e3 * ratio(d.draft, drafted.draft_passes); });
}

void add_acceptance(const DraftSide& drafted, const std::vector<size_t>& prompts, DraftGain& gain) {
  std::vector<int64_t> at(static_cast<size_t>(drafted.block_length - 1));
  int64_t accepted = 0;
  for (const size_t index : prompts) {
    for (const int64_t count : drafted.prompts[index].accepted) {
      accepted += count;
      for (int64_t p = 0; p < count; ++p) ++at[static_cast<size_t>(p)];
    }
  }
  const auto rounds = static_cast<double>(gain.rounds);
  gain.acceptance_length = ratio(static_cast<double>(accepted) + rounds, rounds);
  for (const int64_t count : at) {
    gain.accepted_at.push_back(ratio(static_cast<double>(count), rounds));
  }
}

/// The prompts of each task, ordered by their first prompt. A task is that of the prompt's line,
/// else the prompt's name without the numbers at its end. Empty for one task, or one task per
/// prompt.
std::vector<std::pair<std::string, std::vector<size_t>>> tasks_in(
    const std::vector<RunPrompt>& prompts) {
  std::vector<std::pair<std::string, std::vector<size_t>>> tasks;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::string task = prompts[i].task.empty() ? task_of(prompts[i].name) : prompts[i].task;
    auto found = std::ranges::find(tasks, task, [](const auto& entry) { return entry.first; });
    if (found == tasks.end()) found = tasks.insert(tasks.end(), {task, {}});
    found->second.push_back(i);
  }
  if (tasks.size() < 2 || tasks.size() == prompts.size()) tasks.clear();
  return tasks;
}

TokenAgreement agreement_of(const DraftSide& alone, const DraftSide& drafted,
                            const std::vector<int64_t>& stop_ids) {
  TokenAgreement agreement;
  for (size_t i = 0; i < alone.prompts.size(); ++i) {
    compare_tokens(alone.prompts[i].generated, drafted.prompts[i].generated, stop_ids, agreement);
  }
  return agreement;
}

}  // namespace

DraftGain gain_of(const DraftSide& alone, const DraftSide& drafted,
                  const std::vector<size_t>& prompts, const std::vector<int64_t>& stop_ids) {
  const Sums without = sums_of(alone, prompts, stop_ids);
  const Sums with = sums_of(drafted, prompts, stop_ids);
  DraftGain gain;
  gain.prompts = std::ssize(prompts);
  gain.alone_tokens = without.tokens;
  gain.drafted_tokens = with.tokens;
  gain.rounds = with.rounds;
  gain.passes_per_token =
      ratio(static_cast<double>(with.rounds), static_cast<double>(with.decoded_tokens));
  add_acceptance(drafted, prompts, gain);
  add_times(without, with, gain);
  return gain;
}

std::vector<TokenDifference> first_differences(const DraftSide& alone, const DraftSide& drafted,
                                               const std::vector<int64_t>& stop_ids) {
  std::vector<TokenDifference> differences;
  for (size_t i = 0; i < alone.prompts.size(); ++i) {
    const std::vector<int64_t>& a = alone.prompts[i].generated;
    const std::vector<int64_t>& b = drafted.prompts[i].generated;
    const size_t length = std::min(answer_length(a, stop_ids), answer_length(b, stop_ids));
    const auto end = a.begin() + static_cast<std::ptrdiff_t>(length);
    const auto [of_a, of_b] = std::mismatch(a.begin(), end, b.begin());
    if (of_a != end) differences.push_back({i, of_a - a.begin(), *of_a, *of_b});
  }
  return differences;
}

std::vector<DraftMeasured> measured_of(const DraftRuns& runs, const std::vector<RunPrompt>& prompts,
                                       const DecodeOptions& options) {
  std::vector<size_t> every(prompts.size());
  std::iota(every.begin(), every.end(), size_t{0});
  const auto tasks = tasks_in(prompts);
  std::vector<DraftMeasured> result;
  for (const DraftSide& side : runs.drafted) {
    DraftMeasured& measured = result.emplace_back();
    measured.block_length = side.block_length;
    measured.all = gain_of(runs.alone, side, every, options.stop_ids);
    for (const auto& [task, members] : tasks) {
      measured.tasks.emplace_back(task, gain_of(runs.alone, side, members, options.stop_ids));
    }
    if (options.sampling.temperature > 0.0) continue;
    measured.agreement = agreement_of(runs.alone, side, options.stop_ids);
    measured.differences = first_differences(runs.alone, side, options.stop_ids);
  }
  return result;
}

}  // namespace blockscope
