#include "probe/verify/verify_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "command_line/progress.h"
#include "decode_record/base/text.h"
#include "probe/verify/report_lines.h"

namespace blockscope {
namespace {

std::string seconds(const std::vector<double>& repetitions) {
  const Spread spread = spread_of(repetitions);
  return fmt::format("{:.3f} s", spread.median);
}

std::string range(const std::vector<double>& repetitions) {
  const Spread spread = spread_of(repetitions);
  return fmt::format("[{:.3f}, {:.3f}]", spread.low, spread.high);
}

/// A run can take other steps (other positions or tokens at a step) and end with the same text.
std::string divergence_note(const SettingResult& result) {
  if (result.divergences.empty()) return "none: every sequence takes the same steps";
  std::vector<double> steps, positions;
  double step_sum = 0.0, position_sum = 0.0;
  for (const Divergence& divergence : result.divergences) {
    steps.push_back(static_cast<double>(divergence.step));
    positions.push_back(static_cast<double>(divergence.position));
    step_sum += steps.back();
    position_sum += positions.back();
  }
  const double n = static_cast<double>(steps.size());
  const auto parted = static_cast<int64_t>(steps.size());
  const int64_t other_text = result.agreement.sequences - result.agreement.identical;
  // Sequences that differ only after the stop token have the same text.
  const int64_t same_text = std::max<int64_t>(parted - other_text, 0);
  return fmt::format(
      "in {} of {}, of which {} {} with the same text; first at step {:g} (median; mean {:.1f}), "
      "position {:g} ({:.1f})",
      parted, plural(result.agreement.sequences, "sequence"), same_text,
      same_text == 1 ? "ends" : "end", spread_of(steps).median, step_sum / n,
      spread_of(positions).median, position_sum / n);
}

/// The share of keys that was not read, if keys read to choose are counted.
std::string choice_note(const ExternalReads& reads) {
  const double share = reads.saving_with_choice();
  return share < 0.0 ? fmt::format("{} more than exact read with it", percent(-share))
                     : fmt::format("{} not read when it counts", percent(share));
}

void add_free_running(const VerifyResult& all, const SettingResult& result,
                      const VerifyFacts& facts, Lines& lines) {
  const PairedScores& scores = result.scores;
  const FreeRun& reference = all.reference.run;
  const FreeRun& policy = result.run;
  lines.title(fmt::format("{:<26}{:>18}{:>18}", "Free-running", all.pair() ? "reference" : "exact",
                          "policy"));
  lines.row(fmt::format("accuracy ({})", facts.metric), accuracy(scores, scores.mean_a),
            accuracy(scores, scores.mean_b),
            scores.count == 0 ? "no prompt has an answer"
                              : fmt::format("n {}: {} worse, {} better", scores.count, scores.worse,
                                            scores.better));
  lines.row("tokens equal", "", percent(result.agreement.share_equal()),
            fmt::format("{} of {}; the same text in {} of {}", result.agreement.equal,
                        result.agreement.positions, result.agreement.identical,
                        plural(result.agreement.sequences, "sequence")));
  lines.row("other steps", "", "", divergence_note(result));
  lines.row("denoising steps", fmt::format("{}", reference.denoising_steps),
            fmt::format("{}", policy.denoising_steps));
  const Spread& speedup = result.attention_speedup;
  lines.row("attention", seconds(reference.times.attention), seconds(policy.times.attention),
            fmt::format("{} per pass, median [range] of {}", speed_text(speedup),
                        plural(facts.repeats, "interleaved repetition")));
  lines.row("", range(reference.times.attention), range(policy.times.attention),
            "denoising and commit passes");
  lines.row("whole run", seconds(reference.times.total), seconds(policy.times.total),
            "with prefill, without measuring");
  lines.row("", range(reference.times.total), range(policy.times.total));
  lines.row("external bytes read",
            format_bytes(facts.bytes(reference.reads, reference.reads.rows_read)),
            format_bytes(facts.bytes(policy.reads, policy.reads.rows_read)),
            fmt::format("{} not read; {} when commit passes count", percent(policy.reads.saving()),
                        percent(policy.reads.saving_with_commits())));
  if (reference.reads.total_choice() == 0 && policy.reads.total_choice() == 0) return;
  lines.row("read to choose", format_bytes(facts.choice_bytes(reference.reads)),
            format_bytes(facts.choice_bytes(policy.reads)), choice_note(policy.reads));
}

/// Compares the rule's prediction with the counted reads.
std::string prediction_text(const PolicyResult& result) {
  if (!result.predicted.has_value()) {
    if (result.setting.policy.policy == "exact") return "n/a: exact has no rule";
    if (policy_entry(result.setting.policy).plugin) return "n/a: a plugin has no rule";
    if (result.setting.policy.sure) return "n/a: sure depends on the policy's own probabilities";
    return "n/a: pages that don't divide the prefix; the rule can't say which sets took the last "
           "one";
  }
  const bool equal = result.fidelity.reads == *result.predicted;
  return fmt::format("{} key rows: {}", result.predicted->total_read(),
                     equal ? "equal, for every layer and head" : "DIFFERENT");
}

void add_keys(const PolicyResult& result, const VerifyFacts& facts, Lines& lines) {
  const ExternalReads& reads = result.fidelity.reads;
  lines.line(fmt::format("external keys read        {} of {} key rows, {} of {}: {} not read",
                         reads.total_read(), reads.total_rows(),
                         format_bytes(facts.bytes(reads, reads.rows_read)),
                         format_bytes(facts.bytes(reads, reads.rows)), percent(reads.saving())));
  if (reads.total_choice() > 0) {
    lines.line(fmt::format("read to choose            {} rows, {}: {}", reads.total_choice(),
                           format_bytes(facts.choice_bytes(reads)), choice_note(reads)));
  }
  lines.line(fmt::format("  predicted by the rule   {}", prediction_text(result)));
  if (result.setting.reuse.has_value() && result.setting.reuse->file_predicts.has_value()) {
    lines.line(fmt::format("  predicted by the file   {} not read, from the traces it was made of",
                           percent(*result.setting.reuse->file_predicts)));
  }
  const double flops = reads.flops(facts.head_dim);
  const double avoided = reads.flops_avoided(facts.head_dim);
  lines.line(
      fmt::format("FLOPs avoided             {:.4g} of {:.4g} GFLOP ({}), QK^T and PV over "
                  "external keys{}",
                  avoided * 1e-9, flops * 1e-9, percent(flops > 0.0 ? avoided / flops : 0.0),
                  reads.total_choice() > 0 ? "; choosing is not in it" : ""));
}

/// "-": nothing was measured; that is not an error of 0.
std::string error_text(const ErrorTotals& totals) {
  return totals.elements == 0 ? "-" : fmt::format("{:.3e}", totals.relative_l2());
}

void add_error_line(const std::string& name, const ErrorTotals& totals, const std::string& note,
                    Lines& lines) {
  lines.line(totals.elements == 0 ? fmt::format("  {:<24}n/a: everything was read", name)
                                  : fmt::format("  {:<24}relative L2 {:.3e}   L1 {:.3e}   {}", name,
                                                totals.relative_l2(), totals.l1(), note));
}

/// `who`: "policy" or "reference".
void add_replay(const PolicyResult& result, const std::string& title, const std::string& who,
                const VerifyFacts& facts, Lines& lines) {
  const bool reuses = result.setting.reuse.has_value();
  const Fidelity& fidelity = result.fidelity;
  const KlSummary& kl = fidelity.kl;
  lines.title(title);
  lines.line(fmt::format("{:<26}mean {:.3e}   p95 {:.3e}   max {:.3e}   nats",
                         fmt::format("KL(exact || {})", who), kl.mean, kl.p95, kl.max));
  const double same =
      kl.count == 0 ? 1.0 : static_cast<double>(fidelity.same_top1) / static_cast<double>(kl.count);
  lines.line(fmt::format("                          {}, same top-1 at {}",
                         plural(kl.count, "undecided position"), percent(same)));
  std::string by_step;
  for (const KlSummary& step : fidelity.kl_by_step) {
    by_step += fmt::format("{}{}: {:.1e}", by_step.empty() ? "" : ", ", step.step, step.mean);
  }
  lines.line(fmt::format("  mean by step            {}", by_step));
  lines.line(fmt::format("attention output          the {} against exact", who));
  add_error_line(reuses ? "error where reused" : "error where sparse",
                 sum_of(fidelity.first_order_approximated),
                 reuses ? "first-order (same queries), heads and steps that reuse"
                        : "first-order (same queries), layers and steps that read a set",
                 lines);
  if (reuses && result.setting.reuse->file_error.has_value()) {
    lines.line(
        fmt::format("    predicted by the file relative L2 {:.3e}   from the traces it was "
                    "made of",
                    *result.setting.reuse->file_error));
  }
  add_error_line("error over all heads", sum_of(fidelity.first_order),
                 "first-order, all heads and steps", lines);
  add_error_line("propagated error", sum_of(fidelity.propagated),
                 "against the exact run, all heads and steps", lines);
  add_keys(result, facts, lines);
}

ErrorTotals layer_sum(const std::vector<ErrorTotals>& totals, int64_t layer, int64_t heads) {
  const auto first = totals.begin() + layer * heads;
  return sum_of({first, first + heads});
}

void add_layers(const SettingResult& result, bool pair, Lines& lines) {
  const LayerSizes& shape = result.fidelity.reads.shape;
  const ExternalReads& reads = result.fidelity.reads;
  const bool reuses = result.setting.reuse.has_value();
  lines.title(fmt::format(
      "Layer{}   prefix not read   L2 where {}   L2 of all heads   propagated L2   (replay{})",
      reuses ? "   heads that reuse" : "", reuses ? "reused" : "sparse",
      pair ? ", the policy" : ""));
  for (int64_t layer = 0; layer < shape.num_layers; ++layer) {
    int64_t rows = 0;
    int64_t read = 0;
    for (int64_t k = layer * shape.num_kv_heads; k < (layer + 1) * shape.num_kv_heads; ++k) {
      rows += reads.rows[static_cast<size_t>(k)];
      read += reads.rows_read[static_cast<size_t>(k)];
    }
    const double saved =
        rows == 0 ? 0.0 : static_cast<double>(rows - read) / static_cast<double>(rows);
    std::string reusing;
    if (reuses) {
      int64_t count = 0;
      const auto& ranges = result.setting.reuse->reuse.heads;
      for (const HeadMatrix<bool>& range : ranges) {
        const std::vector<bool>& heads = range[static_cast<size_t>(layer)];
        count += std::count(heads.begin(), heads.end(), true);
      }
      reusing = fmt::format("   {:>16}",
                            fmt::format("{} of {}", count, std::ssize(ranges) * shape.num_heads));
    }
    fmt::format_to(
        lines.out(), "{:>5}{}   {:>15}   {:>15}   {:>15.3e}   {:>13.3e}\n", layer, reusing,
        percent(saved),
        error_text(layer_sum(result.fidelity.first_order_approximated, layer, shape.num_heads)),
        layer_sum(result.fidelity.first_order, layer, shape.num_heads).relative_l2(),
        layer_sum(result.fidelity.propagated, layer, shape.num_heads).relative_l2());
  }
}

int64_t kv_heads_of_all(const LayerSizes& sizes) {
  int64_t count = 0;
  for (int64_t layer = 0; layer < sizes.num_layers; ++layer) count += sizes.kv_heads_of(layer);
  return count;
}

/// "mage,k=16"; for flashblock also the heads that may reuse.
std::string setting_text(const PolicySetting& setting, const LayerSizes& shape) {
  if (!setting.reuse.has_value()) return setting.label;
  const int64_t ranges = std::ssize(setting.reuse->reuse.ranges.first);
  return fmt::format("{}: {} of {} query heads reuse, {} of {} KV heads with their whole group{}",
                     setting.label, setting.reuse->heads(),
                     ranges * shape.num_layers * shape.num_heads,
                     whole_groups(*setting.reuse, shape), ranges * kv_heads_of_all(shape),
                     ranges > 1 ? fmt::format(", over {} ranges of steps", ranges) : "");
}

}  // namespace

std::string speed_text(const Spread& speedup) {
  constexpr double kSame = 0.995;  // 1.00 in print
  const bool slower = speedup.median > 0.0 && speedup.median < kSame;
  const auto factor = [&](double speed) { return slower && speed > 0.0 ? 1.0 / speed : speed; };
  const std::string text = slower ? fmt::format("slower: {:.2f}x the time", factor(speedup.median))
                                  : fmt::format("{:.2f}x as fast", speedup.median);
  if (speedup.low == speedup.high) return text;
  return text + fmt::format(" [{:.2f}, {:.2f}]", factor(slower ? speedup.high : speedup.low),
                            factor(slower ? speedup.low : speedup.high));
}

std::optional<double> error_where_approximated(const Fidelity& fidelity) {
  const ErrorTotals totals = sum_of(fidelity.first_order_approximated);
  return totals.elements == 0 ? std::nullopt : std::optional(totals.relative_l2());
}

Spread attention_per_pass(const FreeRun& run) {
  std::vector<double> milliseconds;
  for (const double total : run.times.attention) {
    const auto passes = static_cast<double>(std::max<int64_t>(run.times.block_passes, 1));
    milliseconds.push_back(total * 1e3 / passes);
  }
  return spread_of(std::move(milliseconds));
}

int64_t whole_groups(const ReuseSetting& setting, const LayerSizes& shape) {
  int64_t count = 0;
  for (const HeadMatrix<bool>& range : setting.reuse.heads) {
    for (int64_t layer = 0; layer < shape.num_layers; ++layer) {
      const std::vector<bool>& heads = range[static_cast<size_t>(layer)];
      const int64_t group = shape.group_size(layer);
      for (auto head = heads.begin(); head != heads.end(); head += group) {
        count += std::all_of(head, head + group, [](bool reuse) { return reuse; });
      }
    }
  }
  return count;
}

std::string detail_text(const VerifyResult& result, const VerifyFacts& facts) {
  const SettingResult& own = result.settings.front();
  const LayerSizes& shape = own.fidelity.reads.shape;
  Lines lines;
  fmt::format_to(lines.out(), "{} ({}): {} of {} to {} tokens; {}; {}, batch {}\n", facts.model,
                 facts.dtype, plural(result.prompts, "prompt"), facts.shortest_prompt,
                 facts.longest_prompt, facts.decoding, plural(facts.threads, "thread"),
                 facts.batch_size);
  fmt::format_to(lines.out(), "policy     {}\n", setting_text(own.setting, shape));
  fmt::format_to(lines.out(), "reference  {}\n", setting_text(result.reference.setting, shape));
  add_free_running(result, own, facts, lines);
  if (result.pair()) {
    add_replay(own, "Under replay of the reference's run: the policy", "policy", facts, lines);
    add_replay(result.reference, "Under replay of the reference's run: the reference", "reference",
               facts, lines);
  } else {
    add_replay(own, "Under replay of the exact run", "policy", facts, lines);
  }
  add_layers(own, result.pair(), lines);
  return lines.take();
}

std::string sweep_text(const VerifyResult& result) {
  if (result.settings.size() < 2) return "";
  std::string text =
      "\nSweep: prefix bytes not read and attention time are free-running medians, KL is under "
      "replay\n tau         gamma  heads  accuracy  tokens equal   KL (nats)   predicted  replayed "
      " "
      "free-running  attention ms/pass\n";
  const auto add = [&](const std::string& tau, const std::string& gamma, const std::string& heads,
                       const std::string& score, const std::string& equal, const std::string& kl,
                       const std::string& predicted, const std::string& replayed,
                       const std::string& free, double milliseconds) {
    fmt::format_to(std::back_inserter(text),
                   "{:>4} {:>13} {:>6}  {:>8}  {:>12}  {:>10}  {:>10}  {:>8}  {:>12}  {:>17.3f}\n",
                   tau, gamma, heads, score, equal, kl, predicted, replayed, free, milliseconds);
  };
  const PairedScores& any = result.settings.front().scores;
  add("", result.pair() ? "ref." : "exact", "", accuracy(any, any.mean_a), "", "", "", "", "",
      attention_per_pass(result.reference.run).median);
  for (size_t i = 1; i < result.settings.size(); ++i) {
    const SettingResult& row = result.settings[i];
    const ReuseSetting& reuse = *row.setting.reuse;  // every setting of a sweep has one
    add(fmt::format("{}", reuse.tau),
        fmt::format("{}{:g}", reuse.by_effect ? "effect " : "", reuse.gamma.value_or(0.0)),
        fmt::format("{}", reuse.heads()), accuracy(row.scores, row.scores.mean_b),
        percent(row.agreement.share_equal()), fmt::format("{:.2e}", row.fidelity.kl.mean),
        row.predicted ? percent(row.predicted->saving()) : "n/a",
        percent(row.fidelity.reads.saving()), percent(row.run.reads.saving()),
        attention_per_pass(row.run).median);
  }
  return text;
}

}  // namespace blockscope
