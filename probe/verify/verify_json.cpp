#include <fmt/format.h>
#include <cmath>

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "probe/verify/spread_json.h"
#include "probe/verify/verify_report.h"

namespace blockscope {
namespace {

Json to_json(const KlSummary& kl) {
  Json json = {{"positions", kl.count}, {"mean", kl.mean}, {"p95", kl.p95}, {"max", kl.max}};
  if (kl.step > 0) json["step"] = kl.step;
  return json;
}

Json to_json(const ErrorTotals& totals) {
  return {{"relative_l2", totals.relative_l2()},       {"l1", totals.l1()},
          {"sum_absolute", totals.absolute},           {"sum_squared", totals.squared},
          {"sum_reference_squared", totals.reference}, {"elements", totals.elements}};
}

/// values [rows * columns] -> one array per row.
template <typename Value, typename Convert>
Json matrix(const std::vector<Value>& values, int64_t rows, const Convert& convert) {
  Json json = Json::array();
  const size_t columns = rows == 0 ? 0 : values.size() / static_cast<size_t>(rows);
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    Json line = Json::array();
    for (size_t i = 0; i < columns; ++i) line.push_back(convert(values[row * columns + i]));
    json.push_back(std::move(line));
  }
  return json;
}

Json to_json(const ExternalReads& reads, const VerifyFacts& facts) {
  const auto same = [](int64_t value) { return value; };
  return {{"saving", reads.saving()},
          {"saving_with_commits", reads.saving_with_commits()},
          {"saving_with_choice", reads.saving_with_choice()},
          {"key_rows", reads.total_rows()},
          {"key_rows_read", reads.total_read()},
          {"commit_key_rows", reads.total_commits()},
          {"choice_rows", reads.total_choice()},
          {"bytes", facts.bytes(reads, reads.rows)},
          {"bytes_read", facts.bytes(reads, reads.rows_read)},
          {"bytes_read_to_choose", facts.choice_bytes(reads)},
          {"flops", reads.flops(facts.head_dim)},
          {"flops_avoided", reads.flops_avoided(facts.head_dim)},
          {"key_rows_by_kv_head", matrix(reads.rows, reads.shape.num_layers, same)},
          {"key_rows_read_by_kv_head", matrix(reads.rows_read, reads.shape.num_layers, same)}};
}

Json to_json(const FreeRun& run, const VerifyFacts& facts) {
  Json contexts = Json::array();
  for (const ContextTime& time : run.context_times) {
    contexts.push_back({{"context_length", time.context_length},
                        {"keys_read", time.keys_read},
                        {"steps", time.steps},
                        {"milliseconds", spread_json(time.milliseconds)}});
  }
  Json scores = Json::array();
  for (const double score : run.scores) scores.push_back(std::isnan(score) ? Json() : Json(score));
  return {{"scores", std::move(scores)},
          {"denoising_steps", run.denoising_steps},
          {"tokens", run.tokens},
          {"block_passes", run.times.block_passes},
          {"attention_seconds", run.times.attention},
          {"total_seconds", run.times.total},
          {"attention_ms_per_pass", spread_json(attention_per_pass(run))},
          {"attention_ms_per_step_and_sequence", std::move(contexts)},
          {"reads", to_json(run.reads, facts)}};
}

Json to_json(const Fidelity& fidelity, const VerifyFacts& facts) {
  const int64_t layers = fidelity.reads.shape.num_layers;
  const auto convert = [](const ErrorTotals& totals) { return to_json(totals); };
  Json by_step = Json::array();
  for (const KlSummary& kl : fidelity.kl_by_step) by_step.push_back(to_json(kl));
  return {{"kl", to_json(fidelity.kl)},
          {"kl_by_step", std::move(by_step)},
          {"same_top1", fidelity.same_top1},
          {"first_order", to_json(sum_of(fidelity.first_order))},
          {"first_order_approximated", to_json(sum_of(fidelity.first_order_approximated))},
          {"propagated", to_json(sum_of(fidelity.propagated))},
          {"first_order_by_head", matrix(fidelity.first_order, layers, convert)},
          {"first_order_approximated_by_head",
           matrix(fidelity.first_order_approximated, layers, convert)},
          {"propagated_by_head", matrix(fidelity.propagated, layers, convert)},
          {"reads", to_json(fidelity.reads, facts)}};
}

template <typename Value>
Json or_null(const std::optional<Value>& value) {
  return value.has_value() ? Json(*value) : Json();
}

/// Describes a policy, with the same keys for the reference and for the settings.
void add_setting(const PolicySetting& setting, Json& json) {
  json["label"] = setting.label;
  json["policy"] = Json::parse(setting.settings);
  if (!setting.reuse.has_value()) return;
  const bool bounded = setting.reuse->bound.has_value();
  json["tau"] = bounded ? Json() : Json(setting.reuse->tau);
  json["count"] = bounded ? Json() : Json(to_string(setting.reuse->count));
  if (bounded) json["bound"] = setting.reuse->bound->bound;
  json["refresh"] = to_string(setting.reuse->refresh);
  json["gamma"] = or_null(setting.reuse->gamma);
  json["order"] = setting.reuse->by_effect ? "effect" : "similarity";
  const ReuseMasks& masks = setting.reuse->reuse;
  const bool by_step = masks.ranges.size() > 1;
  if (by_step) json["first_steps"] = masks.ranges.first;
  json["reuse"] = by_step ? Json(masks.heads) : Json(masks.heads.front());
  json["file_predicts_saving"] = or_null(setting.reuse->file_predicts);
  json["file_predicts_error_where_reused"] = or_null(setting.reuse->file_error);
}

/// Results under replay; null for exact, the reference of all replays.
void add_replay(const PolicyResult& result, const VerifyFacts& facts, Json& json) {
  const bool exact = result.setting.exact();
  json["replay"] = exact ? Json() : to_json(result.fidelity, facts);
  json["predicted_reads"] =
      result.predicted.has_value() ? to_json(*result.predicted, facts) : Json();
  json["measured_equals_predicted"] =
      result.predicted.has_value() ? Json(result.fidelity.reads == *result.predicted) : Json();
}

Json to_json(const PolicyResult& reference, const VerifyFacts& facts) {
  Json json;
  add_setting(reference.setting, json);
  json["free_running"] = to_json(reference.run, facts);
  add_replay(reference, facts, json);
  return json;
}

Json to_json(const SettingResult& result, const VerifyFacts& facts) {
  Json divergences = Json::array();
  for (const Divergence& divergence : result.divergences) {
    divergences.push_back({{"step", divergence.step}, {"position", divergence.position}});
  }
  const TokenAgreement& agreement = result.agreement;
  Json json;
  add_setting(result.setting, json);
  json["free_running"] = to_json(result.run, facts);
  json["accuracy"] = scores_json(result.scores, "reference", "policy");
  json["agreement"] = {{"positions", agreement.positions},
                       {"equal", agreement.equal},
                       {"share", agreement.share_equal()},
                       {"sequences", agreement.sequences},
                       {"identical", agreement.identical}};
  json["first_divergences"] = std::move(divergences);
  json["attention_speedup"] = spread_json(result.attention_speedup);
  add_replay(result, facts, json);
  return json;
}

}  // namespace

std::string verify_json(const VerifyResult& result, const VerifyFacts& facts) {
  Json settings = Json::array();
  for (const SettingResult& setting : result.settings) settings.push_back(to_json(setting, facts));
  const Json json = {{"format", "blockscope-verify"},
                     {"format_version", 2},
                     {"model", facts.model},
                     {"digest", facts.digest},
                     {"dtype", facts.dtype},
                     {"prompts_file", facts.prompts},
                     {"prompts", result.prompts},
                     {"decoding", facts.decoding},
                     {"metric", facts.metric},
                     {"block_length", facts.block_length},
                     {"head_dim", facts.head_dim},
                     {"threads", facts.threads},
                     {"instruction_set", facts.instruction_set},
                     {"batch_size", facts.batch_size},
                     {"repetitions", facts.repeats},
                     {"reference", to_json(result.reference, facts)},
                     {"settings", std::move(settings)}};
  return json.dump(1, ' ', true, Json::error_handler_t::replace) + "\n";
}

}  // namespace blockscope
