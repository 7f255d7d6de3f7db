// The last lines of verify: its verdict.
#include <fmt/format.h>

#include <cmath>

#include "decode_record/base/text.h"
#include "probe/verify/report_lines.h"
#include "probe/verify/verify_report.h"

namespace blockscope {
namespace {

std::string points(double share) { return fmt::format("{:.1f} points", share * 100.0); }

/// The texts about time for the lines "Saved" and "Cost". More time belongs to the cost.
struct TimeVerdict {
  std::string saved, cost;
};

/// Says faster or slower only if every repetition agrees. Else the difference is within the
/// machine's noise.
TimeVerdict time_verdict(const SettingResult& own) {
  const Spread& speedup = own.attention_speedup;
  const bool once = own.run.times.attention.size() < 2;
  const std::string text = fmt::format("{} a pass{}", speed_text(speedup),
                                       once ? " (run once: its noise is not known)" : "");
  if (speedup.low > 1.0) return {"; attention " + text, ""};
  if (speedup.high < 1.0) return {"", "attention " + text + "; "};
  return {"; attention the same within this machine's noise: " + text, ""};
}

/// The time of the whole run, for the line of what was saved or of what it cost.
void add_whole_run(double reference, double policy, TimeVerdict& verdict) {
  const std::string text = fmt::format("the whole run {:.2f} s -> {:.2f} s", reference, policy);
  if (policy > reference) {
    verdict.cost += text + "; ";
  } else {
    verdict.saved += "; " + text;
  }
}

/// What was not read, and what choosing read instead, so that a policy does not look too cheap.
std::string saving_text(const ExternalReads& reads) {
  const std::string text = fmt::format("{:.1f} %", reads.saving() * 100.0);
  if (reads.total_choice() == 0) return text;
  const double net = reads.saving_with_choice() * 100.0;
  return text + (net < 0.0 ? fmt::format(" (with what choosing reads: {:.1f} % more read)", -net)
                           : fmt::format(" (with what choosing reads: {:.1f} %)", net));
}

}  // namespace

std::string noise_text(const PairedScores& scores) {
  if (scores.count == 0) {
    return "no prompt has an answer, so nothing is known about accuracy. HINT: JSONL lines with "
           "\"answer\"";
  }
  if (scores.better + scores.worse == 0) {
    return fmt::format(
        "no prompt scored differently; with {} up to {} could, at 95 % confidence",
        plural(scores.count, "prompt"),
        scores.count < 3 ? "all" : fmt::format("{:.1f} %", 100.0 * scores.rule_of_three()));
  }
  const std::string counts = fmt::format(
      "{} scored worse and {} better, a difference of {:+.1f} points with a "
      "standard error of {}",
      scores.worse, scores.better, (scores.mean_b - scores.mean_a) * 100.0,
      points(scores.error_difference));
  return counts +
         (scores.within_noise()
              ? fmt::format(
                    "; within sampling error (sign test p = {:.2g}): these prompts can't tell",
                    scores.sign_test)
              : fmt::format("; beyond sampling error (sign test p = {:.2g})", scores.sign_test));
}

std::string verdict_text(const VerifyResult& result) {
  const SettingResult& own = result.settings.front();
  const PairedScores& scores = own.scores;
  const std::string accuracy =
      scores.count == 0 ? "accuracy n/a"
                        : fmt::format("accuracy {:.1f} % -> {:.1f} % (n {})", scores.mean_a * 100.0,
                                      scores.mean_b * 100.0, scores.count);
  TimeVerdict time = time_verdict(own);
  const PolicyResult& reference = result.reference;
  add_whole_run(spread_of(reference.run.times.total).median, spread_of(own.run.times.total).median,
                time);
  std::string saved = saving_text(own.run.reads);
  std::string kl = fmt::format("KL {:.2e} nats an undecided position", own.fidelity.kl.mean);
  if (result.pair()) {
    saved = fmt::format("{} against {}", saved, saving_text(reference.run.reads));
    kl = fmt::format("{} from exact, against {:.2e}", kl, reference.fidelity.kl.mean);
  }
  std::string pair;
  if (result.pair())
    pair = fmt::format("{} against {}\n", own.setting.label, reference.setting.label);
  return fmt::format(
      "\n{}Saved: {} of the external key bytes were not read in denoising steps{}\n"
      "Cost:  {}{}, {:.1f} % of the tokens equal, {}\n"
      "Noise: {}\n",
      pair, saved, time.saved, time.cost, accuracy, own.agreement.share_equal() * 100.0, kl,
      noise_text(scores));
}

}  // namespace blockscope
