// Fills CalibrationSums: M and N from the columns of /steps, and similarities and reuse errors from
// one pass over arrays or summaries.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <utility>

#include "analysis/calibration/calibration.h"
#include "analysis/math/cosine.h"
#include "analysis/math/lowest_values.h"
#include "analysis/math/running_mean.h"
#include "analysis/metrics/left_out.h"
#include "analysis/pass/damage.h"
#include "decode_record/base/sha256.h"

namespace blockscope {
namespace {

using Rule = ReuseErrorReader::Rule;

constexpr double kPercentile = 0.05;
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

/// The savings of a trace. Returns an upper bound of its step pairs.
std::int64_t add_steps(const TraceReader& trace, const TraceShape& shape,
                       const RowSelection& selection, CalibrationSums& sums) {
  const std::vector<std::int32_t> positions = positions_of_rows(trace);
  ReuseTrace source;
  source.file = std::filesystem::path(trace.info().path).filename().string();
  source.model_digest = shape.model_digest;
  std::set<std::int64_t> sequences;
  std::int64_t pairs = 0;
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
      const auto keys = static_cast<double>(step.context_length);
      const double flops = keys * positions.at(static_cast<std::size_t>(step.row));
      sums.keys += keys;
      sums.flops += flops;
      if (step.step > 1 && step.recorded) ++pairs;
      for (std::size_t t = 0; t < sums.taus.size(); ++t) {
        TauSums& tau = sums.taus[t];
        if (!counters[t].reuses(step.step, step.changed, step.decided)) continue;
        ++tau.reusing_steps;
        tau.reusing_keys += keys;
        tau.reusing_flops += flops;
      }
    }
  }
  source.sequences = static_cast<std::int64_t>(sequences.size());
  source.prompts = prompts_digest(trace, sequences);
  sums.steps += source.rows;
  sums.traces.push_back(std::move(source));
  return pairs;
}

class CalibrationMetric : public StepMetric {
 public:
  CalibrationMetric(const std::vector<double>& taus, const CalibrationOptions& options,
                    std::int64_t most_pairs)
      : reader_(taus, options.count, options.from_summary), most_pairs_(most_pairs) {}

  Needs begin_trace(const TraceReader& trace, const TraceShape& shape) override;
  void add_block(const BlockSteps& block) override {
    count_missing_pairs(block, left_out_);
    count_rows_without_prefix(block, left_out_);
  }
  void add(const StepView& step) override;
  MetricResult finish() override;
  /// Writes everything except the savings into `sums`.
  void write(CalibrationSums& sums) const;

 private:
  struct Head {
    RunningMean similarity;
    LowestValues lowest;
    std::vector<ReuseErrorSums> reused, recomputed;  // [taus]
  };
  struct Layer {
    std::vector<Head> heads;
    std::vector<CosineSum> cosines;             // [H], scratch
    std::vector<std::int64_t> hidden, unknown;  // [taus], steps
    std::int64_t non_finite = 0, zero = 0;
  };
  void add_similarity(const StepView& step, Layer& layer) const;
  void add_stored_similarity(const StepView& step, Layer& layer) const;
  void add_errors(const StepView& step, Layer& layer);
  void write_left_out(CalibrationSums& sums) const;

  ReuseErrorReader reader_;
  std::int64_t most_pairs_ = 0;
  Field external_ = Field::attention_external;
  TraceShape shape_;
  std::string computed_from_;
  LeftOut left_out_;
  std::vector<Layer> layers_;
};

Needs CalibrationMetric::begin_trace(const TraceReader& trace, const TraceShape& shape) {
  Needs needs = reader_.begin_trace(trace, shape, "calibration");
  external_ = exact_fields(trace).external;
  if (reader_.reads_summary()) {
    needs.fields.push_back(Field::similarity_external);
  } else {
    needs.previous = true;
  }
  std::string datasets = reader_.computed_from();
  if (reader_.reads_summary()) {
    datasets += ", " + std::string(spec_of(Field::similarity_external).path);
  }
  if (computed_from_.find(datasets) == std::string::npos) {
    computed_from_ += (computed_from_.empty() ? "" : ", ") + datasets;
  }
  if (!layers_.empty()) return needs;
  shape_ = shape;
  const std::size_t taus = reader_.taus().size();
  layers_.resize(shape.layers.size());
  for (Layer& layer : layers_) {
    layer.heads.resize(shape.heads.size());
    for (Head& head : layer.heads) {
      head.lowest = LowestValues(kPercentile, most_pairs_);
      head.reused.resize(taus);
      head.recomputed.resize(taus);
    }
    layer.hidden.resize(taus);
    layer.unknown.resize(taus);
  }
  return needs;
}

void CalibrationMetric::add(const StepView& step) {
  if (step.now().context_length == 0) return;
  Layer& layer = layers_[step.layer()];
  if (step.previous() != nullptr) {
    if (reader_.reads_summary()) {
      add_stored_similarity(step, layer);
    } else {
      add_similarity(step, layer);
    }
  }
  add_errors(step, layer);
}

void CalibrationMetric::add_similarity(const StepView& step, Layer& layer) const {
  sum_cosines(step.previous(external_), step.now(external_), layer.heads.size(),
              step.previous_valid(), step.valid(), layer.cosines);
  for (std::size_t head = 0; head < layer.heads.size(); ++head) {
    const CosineSum& sum = layer.cosines[head];
    layer.non_finite += sum.non_finite;
    layer.zero += sum.zero;
    if (sum.terms == 0) continue;
    const double mean = sum.sum / static_cast<double>(sum.terms);
    layer.heads[head].similarity.add(mean, sum.terms);
    layer.heads[head].lowest.add(mean);
  }
}

void CalibrationMetric::add_stored_similarity(const StepView& step, Layer& layer) const {
  std::int64_t terms = 0;
  for (std::size_t i = 0; i < step.valid().size(); ++i) {
    terms += step.valid()[i] != 0 && step.previous_valid()[i] != 0 ? 1 : 0;
  }
  const auto stored = step.now(Field::similarity_external).floats();
  for (std::size_t head = 0; head < layer.heads.size(); ++head) {
    const auto mean = static_cast<double>(stored[head]);
    if (!std::isfinite(mean)) {
      layer.non_finite += terms;
    } else if (terms > 0) {
      layer.heads[head].similarity.add(mean, terms);
      layer.heads[head].lowest.add(mean);
    }
  }
}

void CalibrationMetric::add_errors(const StepView& step, Layer& layer) {
  const std::vector<ReuseErrorReader::Tau>& taus = reader_.read(step);
  for (std::size_t t = 0; t < taus.size(); ++t) {
    if (taus[t].rule == Rule::hidden) ++layer.hidden[t];
    if (taus[t].rule == Rule::unknown) ++layer.unknown[t];
    for (std::size_t head = 0; head < taus[t].heads.size(); ++head) {
      const ReuseErrorSums& sums = taus[t].heads[head];
      Head& into = layer.heads[head];
      if (!sums.finite()) {
        ++layer.non_finite;
      } else {
        (taus[t].rule == Rule::reused ? into.reused : into.recomputed)[t].add(sums);
      }
    }
  }
}

MetricResult CalibrationMetric::finish() { return {}; }

void CalibrationMetric::write(CalibrationSums& sums) const {
  sums.computed_from = computed_from_;
  const auto columns = static_cast<std::size_t>(sums.model.heads);
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const auto layer = static_cast<std::size_t>(shape_.layers[l]);
    for (std::size_t h = 0; h < shape_.heads.size(); ++h) {
      const auto column = static_cast<std::size_t>(shape_.heads[h]);
      const Head& head = layers_[l].heads[h];
      sums.similarity[layer][column] = std::clamp(head.similarity.mean(), -1.0, 1.0);
      sums.standard_deviation[layer][column] = head.similarity.standard_deviation();
      sums.standard_error[layer][column] = head.similarity.standard_error();
      sums.p5[layer][column] = head.lowest.percentile();
      sums.count[layer][column] = head.similarity.values();
      for (std::size_t t = 0; t < sums.taus.size(); ++t) {
        sums.taus[t].reused[layer * columns + column] = head.reused[t];
        sums.taus[t].recomputed[layer * columns + column] = head.recomputed[t];
      }
    }
  }
  write_left_out(sums);
}

void CalibrationMetric::write_left_out(CalibrationSums& sums) const {
  sums.left_out = left_out_;
  // Every layer sees the same steps, so the largest count is the number of steps.
  const auto steps = [&](std::size_t t, auto counts) {
    std::int64_t most = 0;
    for (const Layer& layer : layers_) most = std::max(most, (layer.*counts)[t]);
    return most;
  };
  for (std::size_t t = 0; t < sums.taus.size(); ++t) {
    const std::string tau = std::to_string(sums.taus[t].tau);
    sums.left_out["steps whose source for tau " + tau + " is behind a gap"] =
        steps(t, &Layer::hidden);
    const std::int64_t unknown = steps(t, &Layer::unknown);
    sums.left_out["steps whose error at tau " + tau + " is not in the summary"] = unknown;
    if (unknown > 0) sums.taus[t].errors_known = false;
  }
  for (const Layer& layer : layers_) {
    sums.left_out[kNonFinite] += layer.non_finite;
    sums.left_out[kZeroVector] += layer.zero;
  }
  sums.left_out = without_zeros(sums.left_out);
}

// The limits of the calibration file for a whole model; only a damaged file exceeds them.
constexpr std::int64_t kMostPerAxis = 10'000;
constexpr std::int64_t kMostHeads = 1 << 20;

CalibrationSums empty_sums(const TraceGroup& traces, const std::vector<std::int64_t>& taus) {
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
  sums.model = {shape.num_layers, shape.num_heads, shape.num_kv_heads, shape.model_digest};
  sums.head_dim = shape.head_dim;
  const auto layers = static_cast<std::size_t>(shape.num_layers);
  const auto heads = static_cast<std::size_t>(shape.num_heads);
  const HeadMatrix<double> nothing(layers, std::vector<double>(heads, kNotMeasured));
  sums.similarity = sums.standard_deviation = sums.standard_error = sums.p5 = nothing;
  sums.count.assign(layers, std::vector<std::int64_t>(heads, 0));
  const std::set<std::int64_t> distinct(taus.begin(), taus.end());
  for (const std::int64_t tau : distinct) {
    if (tau < 1) throw UsageError("--tau: expected at least 1, got " + std::to_string(tau));
    TauSums of_tau;
    of_tau.tau = tau;
    of_tau.reused.resize(layers * heads);
    of_tau.recomputed.resize(layers * heads);
    sums.taus.push_back(std::move(of_tau));
  }
  return sums;
}

}  // namespace

CalibrationSums accumulate_calibration(const TraceGroup& traces,
                                       const CalibrationOptions& options) {
  CalibrationSums sums = empty_sums(traces, options.taus);
  sums.tau_counts = options.count;
  std::int64_t pairs = 0;
  for (std::size_t i = 0; i < traces.size(); ++i) {
    pairs += naming_damage(traces.trace(i).info().path, [&] {
      return add_steps(traces.trace(i), traces.shape(), options.pass.rows, sums);
    });
  }
  std::vector<double> taus;
  for (const TauSums& tau : sums.taus) taus.push_back(static_cast<double>(tau.tau));
  auto owner = std::make_unique<CalibrationMetric>(taus, options, pairs);
  const CalibrationMetric& metric = *owner;
  std::vector<std::unique_ptr<StepMetric>> metrics;
  metrics.push_back(std::move(owner));
  run_pass(traces, metrics, options.pass);
  metric.write(sums);
  const bool any = std::ranges::any_of(sums.count, [](const std::vector<std::int64_t>& row) {
    return std::ranges::any_of(row, [](std::int64_t count) { return count > 0; });
  });
  if (!any) {
    std::string reasons;
    for (const auto& [reason, count] : sums.left_out) {
      reasons += "; " + reason + ": " + std::to_string(count);
    }
    throw TraceError(
        traces.trace(0).info().path +
        ": calibration needs two recorded steps of one block with a prefix, and there "
        "are none in " +
        std::to_string(sums.steps) + " denoising steps" + reasons +
        ". HINT: capture more steps (--denoising-steps), or leave out the --steps filter");
  }
  return sums;
}

}  // namespace blockscope
