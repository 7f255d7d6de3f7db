// Fills CalibrationSums: savings from the columns of /steps, and the rest from one pass with
// CalibrationMetric.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <ranges>
#include <set>
#include <string_view>
#include <utility>

#include "analysis/calibration/calibration_metric.h"
#include "analysis/pass/damage.h"
#include "decode_record/base/sha256.h"

namespace blockscope {
namespace {

constexpr std::int64_t kMostStep = std::int64_t{1} << 40;
constexpr std::int64_t kRowsAtATime = 4096;

/// Existing positions of every row.
std::vector<std::int32_t> positions_of_rows(const TraceReader& trace) {
  const auto block = static_cast<std::size_t>(trace.info().meta.block_length);
  const std::int64_t rows = trace.info().num_rows;
  std::vector<std::int32_t> positions;
  positions.reserve(static_cast<std::size_t>(rows));
  for (std::int64_t first = 0; first < rows; first += kRowsAtATime) {
    const auto valid =
        trace.read_ints(Field::step_valid, first, std::min(kRowsAtATime, rows - first));
    for (std::size_t i = 0; i < valid.size(); i += block) {
      const auto begin = valid.begin() + static_cast<std::ptrdiff_t>(i);
      positions.push_back(static_cast<std::int32_t>(
          std::count(begin, begin + static_cast<std::ptrdiff_t>(block), 1)));
    }
  }
  return positions;
}

std::string prompts_digest(const TraceReader& trace, const std::set<std::int64_t>& sequences) {
  Sha256 digest;
  for (const std::int64_t sequence : sequences) {
    digest.update(trace.sequence(sequence).prompt_hash);
  }
  return to_hex(digest.finish());
}

/// The external keys of each layer of the model at a step.
std::vector<double> keys_of_layers(const TraceShape& shape, const StepRef& step) {
  std::vector<double> keys;
  for (std::int64_t layer = 0; layer < shape.num_layers; ++layer) {
    keys.push_back(static_cast<double>(shape.external_keys(layer, step.context_length)));
  }
  return keys;
}

void add_keys(const std::vector<double>& of_step, double rows, std::vector<double>& keys,
              std::vector<double>& flops) {
  for (std::size_t layer = 0; layer < of_step.size(); ++layer) {
    keys[layer] += of_step[layer];
    flops[layer] += of_step[layer] * rows;
  }
}

/// The savings of a trace. Adds to an upper bound of its step pairs, [ranges].
void add_steps(const TraceReader& trace, const TraceShape& shape, const RowSelection& selection,
               CalibrationSums& sums, std::vector<std::int64_t>& pairs) {
  const std::vector<std::int32_t> positions = positions_of_rows(trace);
  ReuseTrace source;
  source.file = std::filesystem::path(trace.info().path).filename().string();
  source.model_digest = shape.model_digest;
  std::set<std::int64_t> sequences;
  for (const BlockSteps& block : list_blocks(trace, selection)) {
    sequences.insert(block.sequence);
    ++source.blocks;
    std::vector<ReuseCounter> counters;
    for (const TauSums& tau : sums.taus) {
      counters.emplace_back(ReuseRule{static_cast<double>(tau.tau), sums.tau_counts});
    }
    for (const StepRef& step : block.steps) {
      if (step.context_length == 0) continue;
      ++source.rows;
      const double rows = positions.at(static_cast<std::size_t>(step.row));
      const std::vector<double> keys = keys_of_layers(shape, step);
      add_keys(keys, rows, sums.keys, sums.flops);
      const std::size_t range = sums.ranges.of(step.step);
      if (step.step > 1 && step.recorded) ++pairs[range];
      for (std::size_t t = 0; t < sums.taus.size(); ++t) {
        TauSums& tau = sums.taus[t];
        if (!counters[t].reuses(step.step, step.changed, step.decided)) continue;
        ++tau.reusing_steps;
        RangeSums& into = tau.ranges[range];
        add_keys(keys, rows, into.reusing_keys, into.reusing_flops);
      }
    }
  }
  source.sequences = static_cast<std::int64_t>(sequences.size());
  source.prompts = prompts_digest(trace, sequences);
  sums.steps += source.rows;
  sums.traces.push_back(std::move(source));
}

// The limits of the calibration file for a whole model; only a damaged file exceeds them.
constexpr std::int64_t kMostPerAxis = 10'000;
constexpr std::int64_t kMostHeads = 1 << 20;

CalibrationSums empty_sums(const TraceGroup& traces, const std::vector<std::int64_t>& taus,
                           const StepRanges& ranges) {
  const TraceShape& shape = traces.shape();
  if (shape.num_layers > kMostPerAxis || shape.num_heads > kMostPerAxis ||
      shape.num_layers * shape.num_heads > kMostHeads) {
    throw CorruptTrace(
        fmt::format("{}: /model: expected at most {} layers, {} heads and {} of all layers, got {} "
                    "layers of {} "
                    "heads. HINT: the file is damaged.",
                    traces.trace(0).info().path, kMostPerAxis, kMostPerAxis, kMostHeads,
                    shape.num_layers, shape.num_heads));
  }
  CalibrationSums sums;
  sums.model = {shape.num_layers, shape.num_heads, shape.num_kv_heads, shape.model_digest,
                shape.layer_kv_heads};
  sums.sizes = shape;
  sums.ranges = ranges;
  const auto layers = static_cast<std::size_t>(shape.num_layers);
  const auto heads = static_cast<std::size_t>(shape.num_heads);
  sums.keys.resize(layers);
  sums.flops.resize(layers);
  const HeadMatrix<double> nothing(layers, std::vector<double>(heads, kNotMeasured));
  for (auto* matrices : {&sums.similarity, &sums.standard_deviation, &sums.standard_error, &sums.p5,
                         &sums.lse_drift}) {
    matrices->assign(ranges.size(), nothing);
  }
  sums.count.assign(ranges.size(),
                    HeadMatrix<std::int64_t>(layers, std::vector<std::int64_t>(heads)));
  const std::set<std::int64_t> distinct(taus.begin(), taus.end());
  for (const std::int64_t tau : distinct) {
    if (tau < 1) throw UsageError("--tau: expected at least 1, got " + std::to_string(tau));
    TauSums of_tau;
    of_tau.tau = tau;
    for (std::size_t range = 0; range < ranges.size(); ++range) {
      const std::vector<ReuseErrorSums> none(layers * heads);
      const std::vector<double> no_keys(layers);
      of_tau.ranges.push_back({no_keys, no_keys, {range + 1, none}, none, {}});
    }
    sums.taus.push_back(std::move(of_tau));
  }
  return sums;
}

std::int64_t longest_block(const TraceGroup& traces, const RowSelection& selection) {
  std::int64_t longest = 1;
  for (std::size_t i = 0; i < traces.size(); ++i) {
    for (const BlockSteps& block : list_blocks(traces.trace(i), selection)) {
      if (!block.steps.empty()) longest = std::max<std::int64_t>(longest, block.steps.back().step);
    }
  }
  return longest;
}

StepRanges ranges_of(const TraceGroup& traces, const CalibrationOptions& options) {
  StepRanges ranges = options.ranges;
  if (options.each_step) {
    const std::int64_t longest = longest_block(traces, options.pass.rows);
    ranges = {};
    for (std::int64_t step = 3; step <= longest; ++step) ranges.first.push_back(step);
  }
  if (ranges.size() <= kMostStepRanges) return ranges;
  throw UsageError(fmt::format(
      "--by-step: expected at most {} ranges of steps, got {}. HINT: name longer ranges, such as "
      "--by-step=2-4,5-8,9-16",
      kMostStepRanges, ranges.size()));
}

std::string statistic_of(const CalibrationOptions& options) {
  if (options.reference == ReuseReference::adjacent) return CalibrationSums{}.statistic;
  if (!options.provisional) {
    return fmt::format("mean cosine of exact A_out and the kept pair (tau {}, {})",
                       options.kept_tau, to_string(options.count));
  }
  const std::optional<double>& bound = options.provisional->lse_bound;
  return fmt::format(
      "mean cosine of exact A_out and the pair since the head's last provisional read (gamma "
      "{:.6g}{})",
      options.provisional->gamma, bound ? fmt::format(", lse_bound {:.6g}", *bound) : "");
}

[[noreturn]] void refuse_no_pairs(const TraceGroup& traces, const CalibrationOptions& options,
                                  const CalibrationSums& sums) {
  std::string reasons;
  for (const auto& [reason, count] : sums.left_out) {
    reasons += "; " + reason + ": " + std::to_string(count);
  }
  const bool by_rule = options.reference == ReuseReference::kept && !options.provisional;
  throw TraceError(
      fmt::format("{}: calibration needs two recorded steps of one block with a prefix{}, and "
                  "there are none in "
                  "{} denoising steps{}. HINT: capture more steps (--denoising-steps), or leave "
                  "out the --steps "
                  "filter",
                  traces.trace(0).info().path,
                  by_rule ? fmt::format(", of which tau {} lets one reuse", options.kept_tau) : "",
                  sums.steps, reasons));
}

}  // namespace

CalibrationSums accumulate_calibration(const TraceGroup& traces,
                                       const CalibrationOptions& options) {
  std::vector<std::int64_t> wanted = options.taus;
  if (options.reference == ReuseReference::kept) wanted.push_back(options.kept_tau);
  CalibrationSums sums = empty_sums(traces, wanted, ranges_of(traces, options));
  sums.tau_counts = options.count;
  sums.reference = options.reference;
  sums.statistic = statistic_of(options);
  std::vector<std::int64_t> pairs(sums.ranges.size());
  for (std::size_t i = 0; i < traces.size(); ++i) {
    naming_damage(traces.trace(i).info().path, [&] {
      add_steps(traces.trace(i), traces.shape(), options.pass.rows, sums, pairs);
    });
  }
  auto owner = std::make_unique<CalibrationMetric>(sums, options, pairs);
  const CalibrationMetric& metric = *owner;
  std::vector<std::unique_ptr<StepMetric>> metrics;
  metrics.push_back(std::move(owner));
  run_pass(traces, metrics, options.pass);
  metric.write(sums);
  const bool any = std::ranges::any_of(sums.count, [](const HeadMatrix<std::int64_t>& matrix) {
    return std::ranges::any_of(matrix, [](const std::vector<std::int64_t>& row) {
      return std::ranges::any_of(row, [](std::int64_t count) { return count > 0; });
    });
  });
  if (!any) refuse_no_pairs(traces, options, sums);
  return sums;
}

StepRanges parse_step_ranges(const std::string& where, const std::string& text) {
  StepRanges ranges{{}};
  std::int64_t next = 1;  // the step that the next range must begin with
  const auto refuse = [&](const std::string& expected) {
    throw UsageError(
        fmt::format("{}: expected {}, got '{}'. HINT: {}=2-4,5-8", where, expected, text, where));
  };
  const auto number = [&](std::string_view digits) {
    std::int64_t step = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
    if (error != std::errc() || end != digits.data() + digits.size() || step < 1 ||
        step > kMostStep) {
      refuse("ranges of steps from 1");
    }
    return step;
  };
  for (const auto part : std::views::split(text, ',')) {
    const std::string_view range(part.begin(), part.end());
    const std::size_t dash = range.find('-');
    std::int64_t first = number(range.substr(0, dash));
    const std::int64_t last = dash == range.npos ? first : number(range.substr(dash + 1));
    if (ranges.first.empty() && first == 2) first = 1;  // step 1 never reuses
    if (first < next) refuse(fmt::format("ranges without overlap, but step {} is in two", first));
    if (first > next) refuse(fmt::format("ranges without a gap, but step {} is in none", next));
    if (last < first) refuse("ranges with the lower step first");
    ranges.first.push_back(first);
    next = last + 1;
  }
  if (ranges.first.empty()) refuse("ranges of steps from 1");
  return ranges;
}

}  // namespace blockscope
