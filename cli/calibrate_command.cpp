// `blockscope calibrate`: makes the calibration file of `capture --policy flashblock,reuse=FILE`
// from traces. Prints what this choice and other choices of gamma and tau save and cost.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "analysis/calibration/calibration.h"
#include "analysis/calibration/effect_order.h"
#include "cli/analyze_flags.h"
#include "cli/commands.h"
#include "command_line/interrupt.h"
#include "command_line/options.h"
#include "command_line/printable.h"
#include "command_line/progress.h"
#include "command_line/standard_streams.h"
#include "command_line/text_output.h"
#include "decode_record/base/error.h"
#include "decode_record/base/text.h"
#include "decode_record/json/json_text.h"

namespace blockscope {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kTablePoints = 12;

struct CalibrateFlags {
  std::vector<std::string> traces;
  std::string output;
  CalibrationRequest request;
  std::string granularity = "head";
  std::string effects;  // --by-effect
  CalibrationOptions options;
  std::string reference = "adjacent";
  std::optional<std::string> by_step;  // its ranges; empty: each step
  bool provisional = false;
  bool force = false;
  bool json = false;
  bool quiet = false;
};

std::string percent(double share) { return fmt::format("{:.2f} %", 100.0 * share); }
std::string error_text(double error) {
  return std::isnan(error) ? "-" : fmt::format("{:.3g}", error);
}

void print_sample(const CalibrationSums& sums) {
  std::int64_t sequences = 0;
  std::int64_t blocks = 0;
  for (const ReuseTrace& trace : sums.traces) {
    sequences += trace.sequences;
    blocks += trace.blocks;
  }
  fmt::print("{}: {}, {}, {} with a prefix\n",
             plural(static_cast<std::int64_t>(sums.traces.size()), "trace"),
             plural(sequences, "sequence"), plural(blocks, "block"),
             plural(sums.steps, "denoising step"));
  for (const auto& [reason, count] : sums.left_out)
    fmt::print("left out: {} ({})\n", printable(reason), count);
}

/// "2-4"; "5-" for the last range, which has no end.
std::string range_text(const StepRanges& ranges, std::size_t range) {
  if (range + 1 == ranges.size()) return fmt::format("{}-", ranges.first[range]);
  return fmt::format("{}-{}", ranges.first[range], ranges.first[range + 1] - 1);
}

void print_layers(const CalibrationSums& sums, const Calibration& chosen, std::size_t range) {
  const bool bounded = chosen.lse_bound.has_value();
  if (sums.ranges.size() > 1) fmt::print("\nsteps {}", range_text(sums.ranges, range));
  fmt::print("\n{:>6} {:>9} {:>9} {:>9} {:>9} {:>12}{} {:>8}\n", "layer", "mean", "least", "most",
             "least p5", "largest SE", bounded ? fmt::format(" {:>10}", "most drift") : "",
             "reuse");
  for (std::size_t layer = 0; layer < sums.similarity[range].size(); ++layer) {
    double sum = 0.0, least = 2.0, most = -2.0, p5 = 2.0, error = kNotMeasured,
           drift = kNotMeasured;
    std::size_t heads = 0;
    for (std::size_t head = 0; head < sums.similarity[range][layer].size(); ++head) {
      const double similarity = sums.similarity[range][layer][head];
      if (std::isnan(similarity)) continue;
      ++heads;
      sum += similarity;
      least = std::min(least, similarity);
      most = std::max(most, similarity);
      p5 = std::min(p5, sums.p5[range][layer][head]);
      error = std::fmax(error, sums.standard_error[range][layer][head]);
      if (bounded) drift = std::fmax(drift, sums.lse_drift[range][layer][head]);
    }
    if (heads == 0) continue;  // not recorded
    const std::vector<bool>& reuse = chosen.reuse.heads[range][layer];
    fmt::print("{:>6} {:>9.4f} {:>9.4f} {:>9.4f} {:>9} {:>12}{} {:>4}/{:<3}\n", layer,
               sum / static_cast<double>(heads), least, most,
               p5 > 1.0 ? "-" : fmt::format("{:.4f}", p5), error_text(error),
               bounded ? fmt::format(" {:>10}", error_text(drift)) : "",
               std::count(reuse.begin(), reuse.end(), true), reuse.size());
  }
}

void print_point(const ReusePoint& point, std::int64_t tau, bool chosen) {
  fmt::print("{} {:>9} {:>4} {:>7} {:>12} {:>12} {:>14} {:>14} {:>12}\n", chosen ? "->" : "  ",
             fmt::format("{:.6g}", point.gamma), tau, point.heads, percent(point.byte_saving),
             percent(point.flop_saving), error_text(point.relative_l2_reused),
             error_text(point.relative_l2_all_steps), error_text(point.mean_l1_reused));
}

/// Other gammas at the chosen tau, then the chosen gamma at other taus.
void print_trade_off(const CalibrationSums& sums, const Calibration& chosen) {
  const ReusePredictor predictor(sums, chosen.granularity, {}, chosen.lse_bound);
  fmt::print(
      "\npredicted over these traces: prefix bytes not read, FLOPs not spent, and the one-step "
      "error\nof the attention output (relative L2). where reused: over the heads and steps that "
      "reuse, which\n--max-error bounds. over all heads: over all heads and steps\n");
  fmt::print("   {:>9} {:>4} {:>7} {:>12} {:>12} {:>14} {:>14} {:>12}\n", "gamma", "tau", "heads",
             "bytes", "FLOPs", "where reused", "over all heads", "|e| reused");
  bool printed = false;
  for (const double gamma : predictor.gammas(kTablePoints)) {
    if (!printed && gamma >= chosen.gamma.front()) {
      print_point(chosen.predicted.point, chosen.tau, true);
      printed = true;
    }
    if (gamma != chosen.gamma.front())
      print_point(predictor.at(gamma, chosen.tau), chosen.tau, false);
  }
  if (!printed) print_point(chosen.predicted.point, chosen.tau, true);
  fmt::print("\n");
  for (const TauSums& tau : sums.taus) {
    print_point(predictor.at(chosen.gamma, tau.tau), tau.tau, tau.tau == chosen.tau);
  }
}

ordered_json to_document(const CalibrateFlags& flags, const CalibrationSums& sums,
                         const Calibration& chosen, const ReuseFile& file) {
  ordered_json left_out = ordered_json::object();
  for (const auto& [reason, count] : sums.left_out) left_out[reason] = count;
  const SampleTrust& trust = chosen.trust;
  return {{"output", flags.output},
          {"calibration", ordered_json::parse(to_json(file))},
          {"left_out", left_out},
          {"sample",
           {{"measured_heads", trust.measured},
            {"undecided_heads", trust.undecided},
            {"largest_standard_error", std::isnan(trust.largest_error)
                                           ? ordered_json(nullptr)
                                           : ordered_json(trust.largest_error)},
            {"fewest_step_pairs", trust.fewest_pairs}}}};
}

CalibrationSums accumulate(CalibrateFlags& flags) {
  const TraceGroup traces(flags.traces);
  if (traces.shape().model_digest.empty()) {
    throw TraceError(fmt::format(
        "{}: /model/json: expected the checkpoint's digest, got none: a calibration must say which "
        "weights it is for",
        flags.traces.front()));
  }
  Progress progress(flags.quiet);
  flags.options.taus.push_back(flags.request.tau);
  flags.options.kept_tau = flags.request.tau;
  flags.options.needs_drift = flags.request.lse_bound.has_value();
  flags.options.pass.progress = [&progress](std::int64_t done, std::int64_t total) {
    progress.update(
        static_cast<double>(done) / static_cast<double>(std::max<std::int64_t>(total, 1)),
        fmt::format("{} of {} steps", done, total));
    InterruptGuard::check();
    return true;
  };
  CalibrationSums sums = accumulate_calibration(traces, flags.options);
  progress.clear();
  return sums;
}

void calibrate(CalibrateFlags flags) {
  flags.request.granularity = parse_reuse_granularity(flags.granularity);
  check_request(flags.request);
  flags.options.reference = parse_reuse_reference("--reference", flags.reference);
  if (flags.by_step) {
    flags.options.each_step = flags.by_step->empty();
    if (!flags.by_step->empty()) {
      flags.options.ranges = parse_step_ranges("--by-step", *flags.by_step);
    }
  }
  if (flags.provisional) {
    if (flags.options.reference != ReuseReference::kept) {
      throw UsageError(
          "--provisional: expected --reference kept, got adjacent: it says how the kept "
          "pair is refreshed. HINT: add --reference kept");
    }
    if (!flags.request.gamma) {
      throw UsageError(
          "--provisional: expected --gamma, because the provisional masks need it while "
          "the traces are read, got another choice. HINT: --gamma 0.85 --lse-bound 0.05");
    }
    flags.options.provisional = {*flags.request.gamma, flags.request.lse_bound};
  }
  const InterruptGuard guard;  // before the first output: a signal must not leave a partial one
  CommandFiles files;
  for (const std::string& trace : flags.traces) files.reads_trace(trace);
  files.reads(flags.effects);
  TextOutput output(files, flags.output, flags.force);
  if (flags.json && output.is_standard_output()) files.reserve_standard_output();
  CalibrationSums sums = accumulate(flags);
  if (!flags.effects.empty()) order_by_effect(flags.effects, sums);
  const Calibration chosen = choose(sums, flags.request);
  const ReuseFile file = to_reuse_file(sums, chosen);
  InterruptGuard::check();
  const std::string text = to_json(file);
  parse_reuse_file(text, flags.output);
  output.write(text);
  output.commit();
  for (const std::string& warning : warnings_of(chosen)) {
    note("blockscope: warning: {}\n", warning);
  }
  if (flags.json) {
    fmt::print("{}\n", json_text(to_document(flags, sums, chosen, file), 2));
    return;
  }
  if (flags.quiet || output.is_standard_output()) return;
  print_sample(sums);
  fmt::print("\n{}", sums.statistic);
  for (std::size_t range = 0; range < sums.ranges.size(); ++range) {
    print_layers(sums, chosen, range);
  }
  print_trade_off(sums, chosen);
  const ReusePrediction& predicted = chosen.predicted;
  fmt::print(
      "\n{}: {} of {} heads{} reuse with gamma {}{} ({}); with tau {} at {} of {}, {} of "
      "{} external keys are read; error where reused {}, over all heads {}\n",
      printable(flags.output), predicted.point.heads,
      sums.model.layers * sums.model.heads * std::ssize(sums.ranges.first),
      sums.ranges.size() > 1 ? fmt::format(" (over {} ranges of steps)", sums.ranges.size()) : "",
      gamma_text(chosen),
      chosen.lse_bound ? fmt::format(" and lse_bound {:.6g}", *chosen.lse_bound) : "",
      to_string(chosen.granularity), chosen.tau, predicted.reusing_steps,
      plural(predicted.steps, "step"), predicted.external_keys_read, predicted.external_keys,
      error_text(predicted.point.relative_l2_reused),
      error_text(predicted.point.relative_l2_all_steps));
}

}  // namespace

void add_calibrate_command(CLI::App& app) {
  auto* command = app.add_subcommand(
      "calibrate", "Choose the heads that may reuse external attention, from traces");
  auto flags = std::make_shared<CalibrateFlags>();
  command->add_option("traces", flags->traces, "Traces of one model, with exact values")
      ->required();
  command
      ->add_option("-o,--output", flags->output,
                   "Write the calibration file here (-: standard output)")
      ->required();
  auto* choice = command->add_option_group("choice", "Choose gamma by exactly one of these:");
  choice
      ->add_option("--gamma", flags->request.gamma,
                   "Reuse heads whose similarity is greater than this, -1 to 1")
      ->check(real_number(-1.0, 1.0));
  choice
      ->add_option("--saving", flags->request.saving,
                   "Take the largest gamma that saves this share of prefix bytes, 0 to 1")
      ->check(real_number(0.0, 1.0));
  choice->add_option(
      "--max-error", flags->request.max_error,
      "Take the smallest gamma whose relative L2 error where reused is at most this");
  command
      ->add_option("--tau", flags->request.tau,
                   "Reuse at steps before which fewer tokens than this were decided")
      ->check(whole_number(1))
      ->capture_default_str();
  add_count_option(*command, flags->options.count);
  command
      ->add_option("--granularity", flags->granularity,
                   "Decide for each query head (head) or for whole KV heads (kv-group)")
      ->capture_default_str();
  command
      ->add_option("--reference", flags->reference,
                   "Compare a step's pair with that of the step before, or with the kept pair")
      ->check(
          CLI::IsMember(std::vector<std::string>(kReuseReferences.begin(), kReuseReferences.end())))
      ->capture_default_str();
  command
      ->add_option("--lse-bound", flags->request.lse_bound,
                   "Let no head reuse whose mean change of L_out is larger than this")
      ->check(real_number(0.0, 1e9));
  auto* by_step = command->add_option_function<std::vector<std::string>>(
      "--by-step",
      [flags](const std::vector<std::string>& given) {
        flags->by_step = given.empty() ? "" : given.front();
      },
      "Choose heads for each denoising step of a block, or for ranges of steps "
      "(--by-step=2-4,5-8)");
  by_step->expected(0, 1)->type_name("[RANGES]");
  command->add_flag("--provisional", flags->provisional,
                    "Refresh a head's kept pair at the steps where its own values recompute it");
  command
      ->add_option("--by-effect", flags->effects,
                   "Order heads by the effect of freezing them, from this knockout.csv of "
                   "`study knockout`, instead of by similarity")
      ->excludes("--reference")
      ->excludes("--lse-bound")
      ->excludes("--by-step");
  command->add_flag("--from-summary", flags->options.from_summary,
                    "Read the recorder's summaries even where the trace has the arrays");
  add_threads_option(*command, flags->options.pass.threads);
  command->add_flag("--force", flags->force, "Replace an existing output");
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->add_flag("--quiet", flags->quiet, "Print warnings and errors only");
  command->footer(
      "Traces need exact values at --record summary or above: --policy exact, or --shadow.\n"
      "\"Where reused\" means over the heads and steps that reuse.\n"
      "Example: blockscope calibrate run.h5 -o reuse.json --gamma 0.9\n"
      "         blockscope calibrate run.h5 -o reuse.json --gamma 0.85 --reference kept \\\n"
      "           --lse-bound 0.05 --by-step=2-4,5-8\n"
      "         blockscope capture MODEL --prompts tasks.jsonl \\\n"
      "           --policy flashblock,tau=2,reuse=reuse.json -o fast.h5");
  command->callback([flags] { calibrate(*flags); });
}

}  // namespace blockscope
