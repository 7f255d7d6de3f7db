#include "probe/verify/draft_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "decode_record/base/text.h"
#include "probe/verify/report_lines.h"
#include "probe/verify/verify_report.h"

namespace blockscope {
namespace {

/// "n/a" if the divisor was 0.
std::string number(double value, const char* form) {
  return std::isnan(value) ? "n/a" : fmt::format(fmt::runtime(form), value);
}

std::string share_text(double share) { return number(share * 100.0, "{:.1f} %"); }

std::string median(const Spread& spread, const char* form) { return number(spread.median, form); }

/// "1.20x [1.10, 1.31]": a ratio of speeds, below or above 1.
std::string times(const Spread& speedup) {
  if (std::isnan(speedup.median)) return "n/a";
  return fmt::format("{:.2f}x [{:.2f}, {:.2f}]", speedup.median, speedup.low, speedup.high);
}

std::string faster(const Spread& speedup) {
  return std::isnan(speedup.median) ? "n/a" : speed_text(speedup);
}

std::string head(const DraftFacts& facts, size_t prompts) {
  return fmt::format("{} ({}): {} of {} to {} tokens; {}; {}, batch {}\ndraft      {}\n",
                     facts.model, facts.dtype, plural(static_cast<int64_t>(prompts), "prompt"),
                     facts.shortest_prompt, facts.longest_prompt, facts.decoding,
                     plural(facts.threads, "thread"), facts.batch_size, facts.draft);
}

/// alone/s, drafted/s and their ratio: tokens per second after the prefill. "answers": the ratio
/// with the prefill. The last three: milliseconds of a pass of the draft, of the target over a
/// block, and of the target alone.
class GainTable {
 public:
  explicit GainTable(const DraftMeasured& any) {
    for (const auto& [task, gain] : any.tasks) width_ = std::max(width_, task.size());
  }

  std::string header() const {
    return line("B", "task", "prompts", "alone/s", "drafted/s", "speed-up [least, most]", "answers",
                "passes/token", "acceptance", "draft", "ms draft", "verify", "alone");
  }
  std::string row(const std::string& block, const std::string& task, const DraftGain& gain) const {
    return line(block, task, fmt::format("{}", gain.prompts), median(gain.alone_speed, "{:.1f}"),
                median(gain.drafted_speed, "{:.1f}"), times(gain.speedup),
                median(gain.answer_speedup, "{:.2f}x"), number(gain.passes_per_token, "{:.3f}"),
                number(gain.acceptance_length, "{:.2f}"), share_text(gain.draft_share.median),
                median(gain.draft_ms, "{:.3f}"), median(gain.verification_ms, "{:.3f}"),
                median(gain.alone_ms, "{:.3f}"));
  }

 private:
  template <typename... Cells>
  std::string line(const std::string& block, const std::string& task, const Cells&... cells) const {
    constexpr const char* kForm =
        "{:>9}{:>10}{:>10}   {:<22}{:>9}{:>14}{:>12}{:>8}{:>10}{:>9}{:>9}\n";
    return fmt::format("{:>4} {:<{}}", block, task, width_) +
           fmt::format(fmt::runtime(kForm), cells...);
  }

  size_t width_ = 4;  // of the longest task, and "task"
};

std::string difference_text(const TokenDifference& difference,
                            const std::vector<RunPrompt>& prompts) {
  return fmt::format("{}, position {}: token {} alone, {} drafted", prompts[difference.prompt].name,
                     difference.position, difference.alone_token, difference.drafted_token);
}

std::string same_tokens(const DraftMeasured& measured, const std::vector<RunPrompt>& prompts) {
  const TokenAgreement& agreement = *measured.agreement;
  if (measured.differences.empty()) {
    return fmt::format("B {}: all {} are the target's own\n", measured.block_length,
                       plural(agreement.positions, "token"));
  }
  return fmt::format(
      "B {}: {} of {} differ; {}. HINT: blockscope verify --draft tells a near tie from an error\n",
      measured.block_length, std::ssize(measured.differences),
      plural(agreement.sequences, "answer"),
      difference_text(measured.differences.front(), prompts));
}

void add_answers(const DraftVerification& result, const DraftFacts& facts,
                 const std::vector<RunPrompt>& prompts, Lines& lines) {
  const PairedScores& scores = result.scores;
  const DraftMeasured& measured = result.measured;
  lines.title(fmt::format("{:<26}{:>18}{:>18}", "Answers", "alone", "drafted"));
  lines.row(fmt::format("accuracy ({})", facts.metric), accuracy(scores, scores.mean_a),
            accuracy(scores, scores.mean_b),
            scores.count == 0 ? "no prompt has an answer"
                              : fmt::format("n {}: {} worse, {} better", scores.count, scores.worse,
                                            scores.better));
  lines.row("tokens", fmt::format("{}", measured.all.alone_tokens),
            fmt::format("{}", measured.all.drafted_tokens));
  if (!measured.agreement) {
    lines.row("tokens equal", "", "n/a", "drawn by each side for itself");
    return;
  }
  const TokenAgreement& agreement = *measured.agreement;
  lines.row("tokens equal", "", percent(agreement.share_equal()),
            fmt::format("{} of {}; the same text in {} of {}", agreement.equal, agreement.positions,
                        agreement.identical, plural(agreement.sequences, "answer")));
  for (size_t i = 0; i < measured.differences.size(); ++i) {
    const TieFinding& tie = result.ties[i];
    lines.line(fmt::format("  {}", difference_text(measured.differences[i], prompts)));
    lines.line(
        fmt::format("    alone its logit is larger by {:.3g}, after a prefill by {:.3g}; "
                    "up to {:.3g} is rounding: {}",
                    tie.gap, tie.gap_again, tie.allowed, tie.tie() ? "a near tie" : "NO TIE"));
  }
}

void add_rounds(const DraftMeasured& measured, Lines& lines) {
  const DraftGain& gain = measured.all;
  lines.title("Rounds");
  lines.row("target's passes a token", "1.000", number(gain.passes_per_token, "{:.3f}"),
            "after the prefill");
  lines.row("acceptance length", "", number(gain.acceptance_length, "{:.2f}"),
            fmt::format("accepted drafts + 1, mean of {}", plural(gain.rounds, "round")));
  std::string shares;
  for (size_t p = 0; p < gain.accepted_at.size(); ++p) {
    shares += fmt::format("{}{}: {}", shares.empty() ? "" : ", ", p + 1,
                          number(gain.accepted_at[p] * 100.0, "{:.0f} %"));
  }
  if (!shares.empty()) lines.line(fmt::format("{:<24}{}", "accepted at position", shares));
}

void add_times(const DraftGain& gain, int64_t repeats, Lines& lines) {
  lines.title("Time");
  lines.row("tokens/s", median(gain.alone_speed, "{:.1f}"), median(gain.drafted_speed, "{:.1f}"),
            fmt::format("{} after the prefill, median [range] of {}", faster(gain.speedup),
                        plural(repeats, "interleaved repetition")));
  lines.row("whole answers, s", median(gain.alone_seconds, "{:.3f}"),
            median(gain.drafted_seconds, "{:.3f}"), faster(gain.answer_speedup));
  lines.row("of that prefill", median(gain.alone_prefill, "{:.3f}"),
            median(gain.drafted_prefill, "{:.3f}"));
  lines.row("a pass of the target, ms", median(gain.alone_ms, "{:.3f}"),
            median(gain.verification_ms, "{:.3f}"), "over one token; over a block");
  lines.row("a pass of the draft, ms", "", median(gain.draft_ms, "{:.3f}"),
            fmt::format("{} of the time after the prefill", share_text(gain.draft_share.median)));
}

std::string verdict(const DraftVerification& result) {
  const DraftMeasured& measured = result.measured;
  const DraftGain& gain = measured.all;
  std::string answers = "drawn answers, whose distribution is the target's: one run can't show it";
  if (measured.agreement) {
    const auto differ = std::ssize(measured.differences);
    const auto errors =
        std::ranges::count_if(result.ties, [](const TieFinding& tie) { return !tie.tie(); });
    const std::string of =
        fmt::format("{} of {} differ", differ, plural(measured.agreement->sequences, "answer"));
    answers = differ == 0 ? "the answers are the target's own, token by token"
              : errors == 0
                  ? of + ", each first at a near tie, which rounding decides"
                  : fmt::format("{}, {} of them at no tie, which is an ERROR", of, errors);
  }
  return fmt::format(
      "\nVerdict: {}; decoding {}, whole answers {}; acceptance length {}, {} of the time for the "
      "draft\n",
      answers, faster(gain.speedup), faster(gain.answer_speedup),
      number(gain.acceptance_length, "{:.2f}"),
      number(gain.draft_share.median * 100.0, "{:.0f} %"));
}

}  // namespace

std::string draft_bench_text(const std::vector<DraftMeasured>& measured, const DraftFacts& facts,
                             const std::vector<RunPrompt>& prompts) {
  std::string text = head(facts, prompts.size());
  text += fmt::format(
      "median of {} by turns; alone/s, drafted/s, speed-up: tokens after the "
      "prefill; answers: with it\n",
      plural(facts.repeats, "run"));
  const GainTable table(measured.front());
  text += table.header();
  for (const DraftMeasured& of : measured) {
    const std::string block = fmt::format("{}", of.block_length);
    text += table.row(block, "all", of.all);
    for (const auto& [task, gain] : of.tasks) text += table.row("", task, gain);
  }
  if (facts.drawn) {
    return text +
           "tokens are drawn by each side for itself: they have the same distribution, which "
           "one run can't show\n";
  }
  for (const DraftMeasured& of : measured) text += same_tokens(of, prompts);
  return text;
}

std::string draft_verify_text(const DraftVerification& result, const DraftFacts& facts,
                              const std::vector<RunPrompt>& prompts) {
  Lines lines;
  fmt::format_to(lines.out(), "{}           rounds of {}\n", head(facts, prompts.size()),
                 plural(result.measured.block_length, "position"));
  add_answers(result, facts, prompts, lines);
  add_rounds(result.measured, lines);
  add_times(result.measured.all, facts.repeats, lines);
  if (!result.measured.tasks.empty()) {
    const GainTable table(result.measured);
    fmt::format_to(lines.out(), "\n{}", table.header());
    for (const auto& [task, gain] : result.measured.tasks) {
      fmt::format_to(lines.out(), "{}", table.row("", task, gain));
    }
  }
  std::string text = lines.take() + verdict(result);
  if (facts.drawn || !result.measured.differences.empty()) {
    text += fmt::format("Noise:   {}\n", noise_text(result.scores));
  }
  return text;
}

}  // namespace blockscope
