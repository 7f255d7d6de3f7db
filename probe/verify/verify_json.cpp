#include <fmt/format.h>
#include <cmath>

#include <iterator>
#include <nlohmann/json.hpp>

#include "probe/verify/verify_report.h"

namespace blockscope {
namespace {

using Json = nlohmann::ordered_json;  // keys in the order of the text

Json to_json(const Spread& spread) {
  return {{"median", spread.median}, {"low", spread.low}, {"high", spread.high}};
}

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
          {"key_rows", reads.total_rows()},
          {"key_rows_read", reads.total_read()},
          {"commit_key_rows", reads.commit_rows},
          {"bytes", facts.bytes(reads.total_rows())},
          {"bytes_read", facts.bytes(reads.total_read())},
          {"flops", reads.flops(facts.block_length, facts.head_dim)},
          {"flops_avoided", reads.flops_avoided(facts.block_length, facts.head_dim)},
          {"key_rows_by_kv_head", matrix(reads.rows, reads.shape.num_layers, same)},
          {"key_rows_read_by_kv_head", matrix(reads.rows_read, reads.shape.num_layers, same)}};
}

Json to_json(const FreeRun& run, const VerifyFacts& facts) {
  Json contexts = Json::array();
  for (const ContextTime& time : run.context_times) {
    contexts.push_back({{"context_length", time.context_length},
                        {"keys_read", time.keys_read},
                        {"steps", time.steps},
                        {"milliseconds", to_json(time.milliseconds)}});
  }
  Json scores = Json::array();
  for (const double score : run.scores) scores.push_back(std::isnan(score) ? Json() : Json(score));
  return {{"scores", std::move(scores)},
          {"denoising_steps", run.denoising_steps},
          {"tokens", run.tokens},
          {"block_passes", run.times.block_passes},
          {"attention_seconds", run.times.attention},
          {"total_seconds", run.times.total},
          {"attention_ms_per_pass", to_json(attention_per_pass(run))},
          {"attention_ms_per_step_and_sequence", std::move(contexts)},
          {"reads", to_json(run.reads, facts)}};
}

Json to_json(const PairedScores& scores) {
  if (scores.count == 0) return {{"count", 0}};
  return {{"count", scores.count},
          {"dense", scores.mean_a},
          {"reuse", scores.mean_b},
          {"dense_standard_error", scores.error_a},
          {"reuse_standard_error", scores.error_b},
          {"difference_standard_error", scores.error_difference},
          {"better", scores.better},
          {"worse", scores.worse},
          {"sign_test_p", scores.sign_test},
          {"within_noise", scores.within_noise()}};
}

Json to_json(const Fidelity& fidelity, const VerifyFacts& facts) {
  const int64_t layers = fidelity.reads.shape.num_layers;
  const auto convert = [](const ErrorTotals& totals) { return to_json(totals); };
  Json by_step = Json::array();
  for (const KlSummary& kl : fidelity.kl_by_step) by_step.push_back(to_json(kl));
  return {
      {"kl", to_json(fidelity.kl)},
      {"kl_by_step", std::move(by_step)},
      {"same_top1", fidelity.same_top1},
      {"first_order", to_json(sum_of(fidelity.first_order))},
      {"first_order_reused_steps", to_json(sum_of(fidelity.first_order_reused))},
      {"propagated", to_json(sum_of(fidelity.propagated))},
      {"first_order_by_head", matrix(fidelity.first_order, layers, convert)},
      {"first_order_reused_steps_by_head", matrix(fidelity.first_order_reused, layers, convert)},
      {"propagated_by_head", matrix(fidelity.propagated, layers, convert)},
      {"reads", to_json(fidelity.reads, facts)}};
}

template <typename Value>
Json or_null(const std::optional<Value>& value) {
  return value.has_value() ? Json(*value) : Json();
}

Json to_json(const SettingResult& result, const VerifyFacts& facts) {
  Json divergences = Json::array();
  for (const Divergence& divergence : result.divergences) {
    divergences.push_back({{"step", divergence.step}, {"position", divergence.position}});
  }
  const TokenAgreement& agreement = result.agreement;
  return {{"tau", result.setting.tau},
          {"gamma", or_null(result.setting.gamma)},
          {"reuse", result.setting.reuse},
          {"file_predicts_saving", or_null(result.setting.file_predicts)},
          {"file_predicts_error_where_reused", or_null(result.setting.file_error)},
          {"free_running", to_json(result.run, facts)},
          {"accuracy", to_json(result.scores)},
          {"agreement",
           {{"positions", agreement.positions},
            {"equal", agreement.equal},
            {"share", agreement.share_equal()},
            {"sequences", agreement.sequences},
            {"identical", agreement.identical}}},
          {"first_divergences", std::move(divergences)},
          {"attention_speedup", to_json(result.attention_speedup)},
          {"replay", to_json(result.fidelity, facts)},
          {"predicted_reads", to_json(result.predicted, facts)},
          {"measured_equals_predicted", result.fidelity.reads == result.predicted}};
}

}  // namespace

std::string verify_json(const VerifyResult& result, const VerifyFacts& facts) {
  Json settings = Json::array();
  for (const SettingResult& setting : result.settings) settings.push_back(to_json(setting, facts));
  const Json json = {{"format", "blockscope-verify"},
                     {"format_version", 1},
                     {"model", facts.model},
                     {"digest", facts.digest},
                     {"dtype", facts.dtype},
                     {"reuse_file", facts.reuse_file},
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
                     {"dense", to_json(result.dense, facts)},
                     {"settings", std::move(settings)}};
  return json.dump(1, ' ', true, Json::error_handler_t::replace) + "\n";
}

std::string verify_csv(const VerifyResult& result, const VerifyFacts& facts) {
  std::string text =
      "setting,tau,gamma,heads,n,accuracy,accuracy_standard_error,worse,better,sign_test_p,"
      "tokens_equal,sequences_identical,kl_mean,kl_p95,kl_max,"
      "first_order_reused_relative_l2,first_order_relative_l2,"
      "propagated_relative_l2,saving_predicted,saving_file,saving_replay,saving_free,"
      "saving_free_with_commits,flops_avoided_share,attention_ms_per_pass,attention_ms_low,"
      "attention_ms_high,total_seconds\n";
  const auto out = std::back_inserter(text);
  const auto number = [](const std::optional<double>& value) {
    return value.has_value() ? fmt::format("{:.9g}", *value) : std::string();
  };
  const auto score = [](const PairedScores& scores, double value) {
    return scores.count == 0 ? std::string() : fmt::format("{:.9g}", value);
  };
  const PairedScores& any = result.settings.front().scores;
  const Spread dense = attention_per_pass(result.dense);
  fmt::format_to(out,
                 "dense,,,0,{},{},{},,,,1,1,0,0,0,,0,0,0,,0,0,0,0,{:.9g},{:.9g},{:.9g},{:.9g}\n",
                 any.count, score(any, any.mean_a), score(any, any.error_a), dense.median,
                 dense.low, dense.high, spread_of(result.dense.times.total).median);
  for (size_t i = 0; i < result.settings.size(); ++i) {
    const SettingResult& row = result.settings[i];
    const Fidelity& fidelity = row.fidelity;
    const Spread time = attention_per_pass(row.run);
    const double flops = fidelity.reads.flops(facts.block_length, facts.head_dim);
    const double avoided = fidelity.reads.flops_avoided(facts.block_length, facts.head_dim);
    fmt::format_to(
        out,
        "{},{},{},{},{},{},{},{},{},{},{:.9g},{:.9g},{:.9g},{:.9g},{:.9g},{},{:.9g},{:.9g},{:.9g},{"
        "},"
        "{:.9g},{:.9g},{:.9g},{:.9g},{:.9g},{:.9g},{:.9g},{:.9g}\n",
        i == 0 ? "file" : "sweep", row.setting.tau, number(row.setting.gamma), row.setting.heads(),
        row.scores.count, score(row.scores, row.scores.mean_b),
        score(row.scores, row.scores.error_b), row.scores.worse, row.scores.better,
        score(row.scores, row.scores.sign_test), row.agreement.share_equal(),
        row.agreement.share_identical(), fidelity.kl.mean, fidelity.kl.p95, fidelity.kl.max,
        number(error_where_reused(fidelity)), sum_of(fidelity.first_order).relative_l2(),
        sum_of(fidelity.propagated).relative_l2(), row.predicted.saving(),
        number(row.setting.file_predicts), fidelity.reads.saving(), row.run.reads.saving(),
        row.run.reads.saving_with_commits(), flops > 0.0 ? avoided / flops : 0.0, time.median,
        time.low, time.high, spread_of(row.run.times.total).median);
  }
  return text;
}

}  // namespace blockscope
