#include "analysis/metrics/query_statistics.h"

#include <cmath>

#include "analysis/pass/exact_values.h"

namespace blockscope {
namespace {

// The float32 rounding of two sums of B terms and of the division by B.
constexpr double kRelativeRounding = 1e-5;
constexpr double kAbsoluteRounding = 1e-6;

constexpr const char* kNotRecorded = "values that were not recorded";

/// Whether the sets are those of exact attention, unchanged by a policy.
bool has_exact_sets(const TraceReader& trace) {
  if (!trace.has(Field::set_topk)) return false;
  try {
    exact_fields(trace);
    return true;
  } catch (const TraceError&) {
    return false;  // S1-S4 compare values that the run used, so they stay valid
  }
}

/// Positions that both this step and the block's first step computed.
std::vector<std::uint8_t> in_both(const StepView& step) {
  std::vector<std::uint8_t> both(step.valid().begin(), step.valid().end());
  for (std::size_t i = 0; i < both.size(); ++i) both[i] &= step.first_valid()[i];
  return both;
}

}  // namespace

QueryStatisticsMetric::QueryStatisticsMetric(const MetricOptions& options, RowMask rows)
    : from_summary_(options.from_summary), rows_(std::move(rows)) {}

Needs QueryStatisticsMetric::begin_trace(const TraceReader& trace, const TraceShape& shape) {
  require_field(trace, Field::prediction_kl_step1, "query_statistics");
  if (layers_.empty()) {
    shape_ = shape;
    const std::size_t layers = shape.layers.size();
    layers_.resize(layers);
    kl_ = StepGrid(layers, 1);
    hidden_ = StepGrid(layers, 1);
    query_ = StepGrid(layers, shape.heads.size());
    block_query_ = StepGrid(layers, shape.heads.size());
    recall_ = StepGrid(layers, shape.kv_heads.size());
    left_out_ = LayerCounts(layers);
  }
  ++trace_;
  path_ = trace.info().path;
  sources_.hidden = !from_summary_ && trace.has(Field::hidden);
  sources_.query = !from_summary_ && trace.has(Field::query);
  sources_.sets = has_exact_sets(trace);
  Needs needs{{Field::prediction_kl_step1}, false, false, {}};
  const auto want = [&needs](Field field) { needs.fields.push_back(field); };
  want(sources_.hidden ? Field::hidden : Field::hidden_gap);
  if (sources_.query) {
    want(Field::query);
  } else {
    want(Field::query_gap);
    want(Field::query_block_gap);
  }
  if (sources_.sets) want(Field::set_topk);
  needs.first = sources_.hidden || sources_.query || sources_.sets;
  computed_from_ = std::string("/prediction/kl_step1, ") +
                   (sources_.hidden ? "/hidden/hidden, " : "/summary/hidden_gap, ") +
                   (sources_.query ? "/query/query" : "/summary/query_gap, query_block_gap") +
                   (sources_.sets ? ", /sets/topk" : "");
  return needs;
}

bool QueryStatisticsMetric::counts(const StepRef& step) const {
  if (rows_.empty()) return true;
  return rows_.at(trace_ - 1).at(static_cast<std::size_t>(step.row));
}

void QueryStatisticsMetric::add_block(const BlockSteps& block) {
  if (block.steps.size() == 1 && counts(block.steps.front())) ++short_blocks_;
}

void QueryStatisticsMetric::add(const StepView& step) {
  if (step.now().step <= 1 || !counts(step.now())) return;
  add_kl(step);
  const bool needs_first = sources_.hidden || sources_.query || sources_.sets;
  if (needs_first && step.first() == nullptr) left_out_.row(step.layer(), kBehindGap);
  add_hidden(step);
  add_queries(step);
  if (sources_.sets) add_recall(step);
}

void QueryStatisticsMetric::add_kl(const StepView& step) {
  const ArrayView view = step.now(Field::prediction_kl_step1);
  if (view.empty()) return left_out_.row(step.layer(), kNotRecorded);
  double sum = 0.0;
  std::int64_t terms = 0;
  std::int64_t infinite = 0;
  for (const float kl : view.floats()) {
    if (std::isnan(kl)) continue;  // not masked
    if (std::isinf(kl)) {
      ++infinite;
      continue;
    }
    sum += static_cast<double>(kl);
    ++terms;
  }
  if (terms > 0) kl_.add(step.layer(), 0, step.now().step, sum / static_cast<double>(terms), terms);
  for (std::int64_t i = 0; i < infinite; ++i) {
    left_out_.row(step.layer(), "predictions whose KL is infinite");
  }
  for (std::int64_t i = terms + infinite; i < step.now().masks_left; ++i) {
    left_out_.row(step.layer(), "masked predictions whose KL is NaN or was not recorded");
  }
}

void QueryStatisticsMetric::add_hidden(const StepView& step) {
  const std::size_t layer = step.layer();
  if (!sources_.hidden) {
    const ArrayView gap = step.now(Field::hidden_gap);
    if (gap.empty()) return left_out_.values(layer, kNotRecorded);
    hidden_.add(layer, 0, step.now().step, static_cast<double>(gap.floats()[0]));
    return;
  }
  if (step.first() == nullptr) return;
  const ArrayView now = step.now(Field::hidden);
  const ArrayView first = step.first(Field::hidden);
  if (now.empty() || first.empty()) return left_out_.values(layer, kNotRecorded);
  Layer& state = layers_[layer];
  const UnitGaps gaps = unit_gaps(to_floats(now, state.now), to_floats(first, state.first),
                                  static_cast<std::size_t>(shape_.hidden_size), in_both(step));
  hidden_.add(layer, 0, step.now().step, gaps.per_position);
}

void QueryStatisticsMetric::add_queries(const StepView& step) {
  const std::size_t layer = step.layer();
  const std::size_t heads = shape_.heads.size();
  if (!sources_.query) {
    const ArrayView gap = step.now(Field::query_gap);
    const ArrayView block_gap = step.now(Field::query_block_gap);
    if (gap.empty() || block_gap.empty()) return left_out_.values(layer, kNotRecorded);
    for (std::size_t h = 0; h < heads; ++h) {
      add_query_gaps(step, h, static_cast<double>(gap.floats()[h]),
                     static_cast<double>(block_gap.floats()[h]));
    }
    return;
  }
  if (step.first() == nullptr) return;
  const ArrayView now = step.now(Field::query);
  const ArrayView first = step.first(Field::query);
  if (now.empty() || first.empty()) return left_out_.values(layer, kNotRecorded);
  Layer& state = layers_[layer];
  const auto a = to_floats(now, state.now);
  const auto b = to_floats(first, state.first);
  const auto channels = static_cast<std::size_t>(shape_.channels_at(layer));
  const std::size_t size = static_cast<std::size_t>(shape_.block_length) * channels;
  const std::vector<std::uint8_t> valid = in_both(step);
  for (std::size_t h = 0; h < heads; ++h) {
    const UnitGaps gaps =
        unit_gaps(a.subspan(h * size, size), b.subspan(h * size, size), channels, valid);
    add_query_gaps(step, h, gaps.per_position, gaps.block_average);
  }
}

void QueryStatisticsMetric::add_query_gaps(const StepView& step, std::size_t head, double gap,
                                           double block_gap) {
  if (block_gap > gap * (1.0 + kRelativeRounding) + kAbsoluteRounding) {
    return left_out_.values(step.layer(), "values with S4 > S3: damaged data (Jensen)");
  }
  query_.add(step.layer(), head, step.now().step, gap);
  block_query_.add(step.layer(), head, step.now().step, block_gap);
}

void QueryStatisticsMetric::add_recall(const StepView& step) {
  const std::size_t layer = step.layer();
  if (shape_.keys_at(layer, step.now().context_length) <= shape_.set_size) {
    return left_out_.row(layer, "rows with N <= k: no recall");
  }
  if (step.first() == nullptr) return;
  const ArrayView now = step.now(Field::set_topk);
  const ArrayView first = step.first(Field::set_topk);
  if (now.empty() || first.empty()) return left_out_.values(layer, kNotRecorded);
  const auto k = static_cast<std::size_t>(shape_.set_size);
  Layer& state = layers_[layer];
  for (std::size_t h = 0; h < shape_.kv_slots_at(layer); ++h) {
    try {
      recall_.add(layer, h, step.now().step,
                  state.recall.of(first.ints().subspan(h * k, k), now.ints().subspan(h * k, k)));
    } catch (const Error& error) {
      throw CorruptTrace(path_ + ":/sets/topk: row " + std::to_string(step.now().row) +
                         ", layer slot " + std::to_string(layer) + ", KV head slot " +
                         std::to_string(h) + ": " + error.what());
    }
  }
}

std::size_t QueryStatisticsMetric::kl_layer() const {
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    if (kl_.over_steps(layer, 0).terms() > 0) return layer;
  }
  return 0;
}

std::array<RunningMean, kNumStages> QueryStatisticsMetric::stage_means() const {
  std::array<RunningMean, kNumStages> means;
  means[0] = kl_.over_steps(kl_layer(), 0);
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    means[1].merge(hidden_.over_steps(layer, 0));
    for (std::size_t h = 0; h < shape_.heads.size(); ++h) {
      means[2].merge(query_.over_steps(layer, h));
      means[3].merge(block_query_.over_steps(layer, h));
    }
    for (std::size_t h = 0; h < shape_.kv_heads.size(); ++h) {
      means[4].merge(recall_.over_steps(layer, h));
    }
  }
  return means;
}

MetricResult QueryStatisticsMetric::finish() {
  MetricResult result;
  result.metric = "query_statistics";
  result.title = "Query statistics, five stages";
  result.formula =
      "S1 KL(p1||pt); S2 |h1-ht|; S3 mean_i |q1_i-qt_i|; S4 |mean_i q1_i-qt_i|; S5 r(t)";
  result.source = "MAGE, appendix A, Table 2";
  result.computed_from = computed_from_;
  ResultArray stages{"stages",
                     "nats, 1, 1, 1, share",
                     "means over all steps t > 1",
                     {{"stage", {}, {kStageLabels.begin(), kStageLabels.end()}}},
                     {},
                     {}};
  for (const RunningMean& mean : stage_means()) {
    stages.values.push_back(mean.mean());
    stages.terms.push_back(mean.terms());
  }
  result.arrays.push_back(std::move(stages));
  // One layer's row of a [layer, 1, step] grid without its single column.
  const auto without_column = [](ResultArray array) {
    array.axes.erase(array.axes.begin() + 1);
    return array;
  };
  const ResultAxis one{"column", {0.0}, {}};
  const ResultAxis layers = shape_.layer_axis();
  ResultArray kl = kl_.means("kl", "nats", "S1: KL(p^1 || p^t) at masked positions", layers, one);
  const std::size_t num_steps = kl.axes.back().size();
  const auto begin = static_cast<std::ptrdiff_t>(kl_layer() * num_steps);
  const auto end = begin + static_cast<std::ptrdiff_t>(num_steps);
  kl.axes = {kl.axes.back()};
  kl.values = {kl.values.begin() + begin, kl.values.begin() + end};
  kl.terms = {kl.terms.begin() + begin, kl.terms.begin() + end};
  result.arrays.push_back(std::move(kl));
  result.arrays.push_back(without_column(hidden_.means(
      "hidden_gap", "1", "S2: mean gap of unit-normalised hidden states", layers, one)));
  result.arrays.push_back(query_.means("query_gap", "1", "S3: mean gap of unit-normalised queries",
                                       layers, shape_.head_axis()));
  result.arrays.push_back(block_query_.means("query_block_gap", "1",
                                             "S4: gap of the block average of these queries",
                                             layers, shape_.head_axis()));
  result.arrays.push_back(recall_.means("recall", "share", "S5: recall of step 1's set at k",
                                        layers, shape_.kv_head_axis()));
  left_out_.add_to(result.left_out);
  if (short_blocks_ > 0) result.left_out[kOneStep] = short_blocks_;
  const std::int64_t non_finite =
      hidden_.non_finite() + query_.non_finite() + block_query_.non_finite() + recall_.non_finite();
  if (non_finite > 0) result.left_out[kNonFinite] = non_finite;
  return result;
}

}  // namespace blockscope
