#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "probe/verify/draft_report.h"
#include "probe/verify/spread_json.h"

namespace blockscope {
namespace {

Json to_json(const DraftGain& gain) {
  return {{"prompts", gain.prompts},
          {"tokens_alone", gain.alone_tokens},
          {"tokens_drafted", gain.drafted_tokens},
          {"rounds", gain.rounds},
          {"acceptance_length", gain.acceptance_length},
          {"accepted_at", gain.accepted_at},
          {"target_passes_per_token", gain.passes_per_token},
          {"tokens_per_second_alone", spread_json(gain.alone_speed)},
          {"tokens_per_second_drafted", spread_json(gain.drafted_speed)},
          {"speedup", spread_json(gain.speedup)},
          {"answer_speedup", spread_json(gain.answer_speedup)},
          {"seconds_alone", spread_json(gain.alone_seconds)},
          {"seconds_drafted", spread_json(gain.drafted_seconds)},
          {"prefill_seconds_alone", spread_json(gain.alone_prefill)},
          {"prefill_seconds_drafted", spread_json(gain.drafted_prefill)},
          {"draft_share", spread_json(gain.draft_share)},
          {"ms_target_alone", spread_json(gain.alone_ms)},
          {"ms_target_verification", spread_json(gain.verification_ms)},
          {"ms_draft", spread_json(gain.draft_ms)}};
}

Json to_json(const TokenDifference& difference, const std::vector<RunPrompt>& prompts) {
  return {{"prompt", prompts[difference.prompt].name},
          {"position", difference.position},
          {"token_alone", difference.alone_token},
          {"token_drafted", difference.drafted_token}};
}

Json to_json(const DraftMeasured& measured, const std::vector<RunPrompt>& prompts) {
  Json json = {{"block_length", measured.block_length}, {"all", to_json(measured.all)}};
  Json tasks = Json::object();
  for (const auto& [task, gain] : measured.tasks) tasks[task] = to_json(gain);
  json["tasks"] = std::move(tasks);
  json["agreement"] = nullptr;
  if (measured.agreement) {
    json["agreement"] = {{"positions", measured.agreement->positions},
                         {"equal", measured.agreement->equal},
                         {"answers", measured.agreement->sequences},
                         {"identical", measured.agreement->identical}};
  }
  Json differences = Json::array();
  for (const TokenDifference& difference : measured.differences) {
    differences.push_back(to_json(difference, prompts));
  }
  json["first_differences"] = std::move(differences);
  return json;
}

Json head(const char* format, const DraftFacts& facts, size_t prompts) {
  return {{"format", format},
          {"format_version", 1},
          {"model", facts.model},
          {"digest", facts.digest},
          {"draft", facts.draft},
          {"draft_digest", facts.draft_digest},
          {"dtype", facts.dtype},
          {"prompts_file", facts.prompts},
          {"prompts", prompts},
          {"decoding", facts.decoding},
          {"drawn", facts.drawn},
          {"threads", facts.threads},
          {"instruction_set", facts.instruction_set},
          {"batch_size", facts.batch_size},
          {"repetitions", facts.repeats}};
}

std::string dumped(const Json& json) {
  return json.dump(1, ' ', true, Json::error_handler_t::replace) + "\n";
}

/// NaN: not scored.
Json score_json(double score) { return std::isnan(score) ? Json() : Json(score); }

Json seconds_json(const PromptRun& run) {
  Json json = Json::array();
  for (const PassSeconds& seconds : run.seconds) {
    json.push_back({seconds.prefill, seconds.draft, seconds.target});
  }
  return json;
}

Json prompt_json(const RunPrompt& prompt, const PromptRun& alone, const PromptRun& drafted,
                 const std::vector<int64_t>& stop_ids) {
  return {{"id", prompt.name},
          {"task", prompt.task},
          {"tokens_alone", answer_length(alone.generated, stop_ids)},
          {"tokens_drafted", answer_length(drafted.generated, stop_ids)},
          {"rounds", drafted.rounds},
          {"accepted", drafted.accepted},
          {"seconds_alone", seconds_json(alone)},
          {"seconds_drafted", seconds_json(drafted)}};
}

}  // namespace

std::string draft_bench_json(const std::vector<DraftMeasured>& measured, const DraftFacts& facts,
                             const std::vector<RunPrompt>& prompts) {
  Json json = head("blockscope-bench-draft", facts, prompts.size());
  Json lengths = Json::array();
  for (const DraftMeasured& of : measured) lengths.push_back(to_json(of, prompts));
  json["block_lengths"] = std::move(lengths);
  return dumped(json);
}

std::string draft_verify_json(const DraftVerification& result, const DraftRuns& runs,
                              const DraftScores& scores, const DraftFacts& facts,
                              const std::vector<RunPrompt>& prompts,
                              const std::vector<int64_t>& stop_ids) {
  Json json = head("blockscope-verify-draft", facts, prompts.size());
  json["metric"] = facts.metric;
  json.update(to_json(result.measured, prompts));
  for (size_t i = 0; i < result.ties.size(); ++i) {
    const TieFinding& tie = result.ties[i];
    json["first_differences"][i].update(Json{{"gap", tie.gap},
                                             {"gap_after_prefill", tie.gap_again},
                                             {"rounding", tie.rounding},
                                             {"allowed", tie.allowed},
                                             {"tie", tie.tie()}});
  }
  json["accuracy"] = scores_json(result.scores, "alone", "drafted");
  Json each = Json::array();
  const DraftSide& drafted = runs.drafted.front();
  for (size_t i = 0; i < prompts.size(); ++i) {
    Json prompt = prompt_json(prompts[i], runs.alone.prompts[i], drafted.prompts[i], stop_ids);
    prompt["score_alone"] = score_json(scores.alone[i]);
    prompt["score_drafted"] = score_json(scores.drafted[i]);
    each.push_back(std::move(prompt));
  }
  json["answers"] = std::move(each);
  return dumped(json);
}

}  // namespace blockscope
