#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <optional>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

#include "probe/verify/verify_report.h"

namespace blockscope {
namespace {

/// RFC 4180: labels hold commas.
std::string quoted(const std::string& text) {
  std::string field = "\"";
  for (const char c : text) field += c == '"' ? std::string("\"\"") : std::string(1, c);
  return field + '"';
}

/// Nine digits; empty for NaN, a value that this policy or these prompts don't have.
std::string real(std::optional<double> value) {
  return value.has_value() ? fmt::format("{:.9g}", *value) : "";
}

/// The columns of a line, each with its name. The comparison with the reference is null on the
/// reference's own line.
using CsvRow = std::vector<std::pair<const char*, std::string>>;
CsvRow csv_row(const std::string& kind, const PolicyResult& result, const SettingResult* beside,
               const PairedScores& scores, const VerifyFacts& facts) {
  const Fidelity& fidelity = result.fidelity;
  const std::optional<ReuseSetting>& reuse = result.setting.reuse;
  const ExternalReads& free = result.run.reads;
  const ExternalReads& reads = result.setting.exact() ? free : fidelity.reads;
  const double flops = reads.flops(facts.head_dim);
  const double avoided = reads.flops_avoided(facts.head_dim);
  const Spread time = attention_per_pass(result.run);
  const auto if_scored = [&](double of_reference, double of_policy) {
    return scores.count == 0 ? "" : real(beside != nullptr ? of_policy : of_reference);
  };
  const auto prompts = [&](int64_t count) {
    return beside != nullptr ? fmt::format("{}", count) : "";
  };
  return {
      {"setting", kind},
      {"tau", reuse && !reuse->bound ? fmt::format("{}", reuse->tau) : ""},
      {"gamma", reuse ? real(reuse->gamma) : ""},
      {"order", !reuse             ? ""
                : reuse->by_effect ? "effect"
                                   : "similarity"},
      {"heads", reuse ? fmt::format("{}", reuse->heads()) : ""},
      {"n", fmt::format("{}", scores.count)},
      {"accuracy", if_scored(scores.mean_a, scores.mean_b)},
      {"accuracy_standard_error", if_scored(scores.error_a, scores.error_b)},
      {"worse", prompts(scores.worse)},
      {"better", prompts(scores.better)},
      {"sign_test_p", beside != nullptr ? if_scored(0.0, scores.sign_test) : ""},
      {"tokens_equal", real(beside != nullptr ? beside->agreement.share_equal() : 1.0)},
      {"sequences_identical", real(beside != nullptr ? beside->agreement.share_identical() : 1.0)},
      {"kl_mean", real(fidelity.kl.mean)},
      {"kl_p95", real(fidelity.kl.p95)},
      {"kl_max", real(fidelity.kl.max)},
      {"first_order_approximated_relative_l2", real(error_where_approximated(fidelity))},
      {"first_order_relative_l2", real(sum_of(fidelity.first_order).relative_l2())},
      {"propagated_relative_l2", real(sum_of(fidelity.propagated).relative_l2())},
      {"saving_predicted", result.predicted ? real(result.predicted->saving()) : ""},
      {"saving_file", reuse ? real(reuse->file_predicts) : ""},
      {"saving_replay", real(reads.saving())},
      {"saving_free", real(free.saving())},
      {"saving_free_with_commits", real(free.saving_with_commits())},
      {"flops_avoided_share", real(flops > 0.0 ? avoided / flops : 0.0)},
      {"attention_ms_per_pass", real(time.median)},
      {"attention_ms_low", real(time.low)},
      {"attention_ms_high", real(time.high)},
      {"total_seconds", real(spread_of(result.run.times.total).median)},
      {"policy", quoted(result.setting.label)},
      {"saving_free_with_choice", real(free.saving_with_choice())},
      {"count", reuse && !reuse->bound ? std::string(to_string(reuse->count)) : ""},
      {"refresh", reuse ? std::string(to_string(reuse->refresh)) : ""},
      {"bound", reuse && reuse->bound ? real(reuse->bound->bound) : ""},
      {"sure", real(result.setting.policy.sure)}};
}

}  // namespace

std::string verify_csv(const VerifyResult& result, const VerifyFacts& facts) {
  const SettingResult& own = result.settings.front();
  std::vector<CsvRow> rows{csv_row("reference", result.reference, nullptr, own.scores, facts)};
  for (const SettingResult& row : result.settings) {
    rows.push_back(csv_row(&row == &own ? "policy" : "sweep", row, &row, row.scores, facts));
  }
  std::string text = fmt::format("{}\n", fmt::join(rows.front() | std::views::keys, ","));
  for (const CsvRow& row : rows) {
    text += fmt::format("{}\n", fmt::join(row | std::views::values, ","));
  }
  return text;
}

}  // namespace blockscope
