#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>

#include "probe/verify/verify_report.h"

namespace blockscope {
namespace {

/// RFC 4180: labels hold commas.
std::string quoted(const std::string& text) {
  std::string field = "\"";
  for (const char c : text) field += c == '"' ? std::string("\"\"") : std::string(1, c);
  return field + '"';
}

/// One line: empty fields are what this policy, or this file of prompts, doesn't have.
class CsvLine {
 public:
  CsvLine& text(const std::string& value) {
    line_ += (line_.empty() ? "" : ",") + value;
    return *this;
  }
  CsvLine& real(const std::optional<double>& value) {
    return text(value.has_value() ? fmt::format("{:.9g}", *value) : "");
  }
  CsvLine& whole(const std::optional<int64_t>& value) {
    return text(value.has_value() ? fmt::format("{}", *value) : "");
  }
  std::string take() { return line_ + '\n'; }

 private:
  std::string line_;
};

/// `beside` null: the reference's own line.
std::string csv_line(const std::string& kind, const PolicyResult& result,
                     const SettingResult* beside, const PairedScores& scores,
                     const VerifyFacts& facts) {
  using Real = std::optional<double>;
  using Whole = std::optional<int64_t>;
  const Fidelity& fidelity = result.fidelity;
  const std::optional<ReuseSetting>& reuse = result.setting.reuse;
  const bool scored = scores.count > 0;
  const ExternalReads& reads = result.setting.exact() ? result.run.reads : fidelity.reads;
  const double flops = reads.flops(facts.block_length, facts.head_dim);
  const double avoided = reads.flops_avoided(facts.block_length, facts.head_dim);
  const Spread time = attention_per_pass(result.run);
  const auto if_scored = [&](double value) { return scored ? Real(value) : Real(); };
  const auto if_beside = [&](int64_t value) { return beside != nullptr ? Whole(value) : Whole(); };
  CsvLine line;
  line.text(kind)
      .whole(reuse ? Whole(reuse->tau) : Whole())
      .real(reuse ? reuse->gamma : Real())
      .whole(reuse ? Whole(reuse->heads()) : Whole())
      .whole(scores.count)
      .real(if_scored(beside != nullptr ? scores.mean_b : scores.mean_a))
      .real(if_scored(beside != nullptr ? scores.error_b : scores.error_a))
      .whole(if_beside(scores.worse))
      .whole(if_beside(scores.better))
      .real(beside != nullptr ? if_scored(scores.sign_test) : Real())
      .real(beside != nullptr ? beside->agreement.share_equal() : 1.0)
      .real(beside != nullptr ? beside->agreement.share_identical() : 1.0)
      .real(fidelity.kl.mean)
      .real(fidelity.kl.p95)
      .real(fidelity.kl.max)
      .real(error_where_approximated(fidelity))
      .real(sum_of(fidelity.first_order).relative_l2())
      .real(sum_of(fidelity.propagated).relative_l2())
      .real(result.predicted ? Real(result.predicted->saving()) : Real())
      .real(reuse ? reuse->file_predicts : Real())
      .real(reads.saving())
      .real(result.run.reads.saving())
      .real(result.run.reads.saving_with_commits())
      .real(flops > 0.0 ? avoided / flops : 0.0)
      .real(time.median)
      .real(time.low)
      .real(time.high)
      .real(spread_of(result.run.times.total).median)
      .text(quoted(result.setting.label))
      .real(result.run.reads.saving_with_choice());
  return line.take();
}

}  // namespace

std::string verify_csv(const VerifyResult& result, const VerifyFacts& facts) {
  std::string text =
      "setting,tau,gamma,heads,n,accuracy,accuracy_standard_error,worse,better,sign_test_p,"
      "tokens_equal,sequences_identical,kl_mean,kl_p95,kl_max,"
      "first_order_approximated_relative_l2,first_order_relative_l2,"
      "propagated_relative_l2,saving_predicted,saving_file,saving_replay,saving_free,"
      "saving_free_with_commits,flops_avoided_share,attention_ms_per_pass,attention_ms_low,"
      "attention_ms_high,total_seconds,policy,saving_free_with_choice\n";
  text += csv_line("reference", result.reference, nullptr, result.settings.front().scores, facts);
  for (const SettingResult& row : result.settings) {
    const bool own = &row == &result.settings.front();
    text += csv_line(own ? "policy" : "sweep", row, &row, row.scores, facts);
  }
  return text;
}

}  // namespace blockscope
