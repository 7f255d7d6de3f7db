#include "analysis/metrics/drift.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "analysis/math/running_mean.h"
#include "analysis/metrics/block_decisions.h"
#include "analysis/metrics/layer_counts.h"
#include "analysis/pass/exact_values.h"

namespace blockscope {
namespace {

constexpr const char* kDriftMetric = "drift";
constexpr std::int64_t kFarthest = 8;
constexpr std::size_t kOffsets = 2 * kFarthest + 1;

struct Drifting {
  Field field;
  const char* name;
  const char* description;
};
constexpr std::array<Drifting, 4> kDrifting{
    {{Field::query, "drift_query", "queries"},
     {Field::block_key, "drift_key", "keys"},
     {Field::block_value, "drift_value", "values"},
     {Field::hidden, "drift_hidden", "inputs of the layer"}}};

/// NaN if a value is not finite or a vector has length 0.
double cosine(std::span<const float> a, std::span<const float> b) {
  double dot = 0.0;
  double square_a = 0.0;
  double square_b = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    dot += double{a[i]} * double{b[i]};
    square_a += double{a[i]} * double{a[i]};
    square_b += double{b[i]} * double{b[i]};
  }
  return dot / (std::sqrt(square_a) * std::sqrt(square_b));
}

class DriftMetric final : public StepMetric {
 public:
  Needs begin_trace(const TraceReader& trace, const TraceShape& shape) override {
    require_field(trace, Field::query, kDriftMetric);
    trace_ = &trace;
    if (layers_.empty()) {
      layers_.resize(shape.layers.size());
      shape_ = shape;
      left_out_ = LayerCounts(shape.layers.size());
    }
    decided_.clear();
    Needs needs{{}, true, false, {}};
    for (std::size_t i = 0; i < kDrifting.size(); ++i) {
      has_.at(i) = trace.has(kDrifting.at(i).field);
      seen_.at(i) = seen_.at(i) || has_.at(i);
      if (has_.at(i)) needs.fields.push_back(kDrifting.at(i).field);
    }
    return needs;
  }

  void add_block(const BlockSteps& block) override {
    count_missing_pairs(block, missing_);
    std::vector<std::int64_t>& decided = decided_[{block.sequence, block.block}];
    for (const std::int64_t index : decisions_of(*trace_, block).index) {
      decided.push_back(index < 0 ? -1 : block.steps[static_cast<std::size_t>(index)].step);
    }
  }

  void add(const StepView& step) override {
    if (step.previous() == nullptr) return;
    const auto& decided = decided_.at({step.now().sequence, step.now().block});
    for (std::size_t i = 0; i < kDrifting.size(); ++i) {
      if (has_.at(i)) add_field(step, i, decided);
    }
  }

  MetricResult finish() override;

 private:
  using Means = std::array<RunningMean, kOffsets>;
  struct Layer {
    std::array<Means, kDrifting.size()> means;
    std::vector<float> before, now;  // buffers
  };

  void add_field(const StepView& step, std::size_t i, const std::vector<std::int64_t>& decided) {
    Layer& layer = layers_[step.layer()];
    const auto before = to_floats(step.previous(kDrifting.at(i).field), layer.before);
    const auto now = to_floats(step.now(kDrifting.at(i).field), layer.now);
    const std::size_t positions = decided.size();
    const auto dim = static_cast<std::size_t>(
        kDrifting.at(i).field == Field::hidden ? shape_.hidden_size : shape_.head_dim);
    const std::size_t columns = now.size() / (positions * dim);
    for (std::size_t p = 0; p < positions; ++p) {
      if (decided[p] < 0) {  // counted once, with the queries
        if (i == 0) left_out_.values(step.layer(), "positions that were not decided in the block");
        continue;
      }
      const std::int64_t offset = step.now().step - decided[p];
      if (offset < -kFarthest || offset > kFarthest) continue;
      if (step.valid()[p] == 0 || step.previous_valid()[p] == 0) continue;
      RunningMean& mean = layer.means.at(i).at(static_cast<std::size_t>(offset + kFarthest));
      for (std::size_t column = 0; column < columns; ++column) {
        const std::size_t at = (column * positions + p) * dim;
        const double value = cosine(before.subspan(at, dim), now.subspan(at, dim));
        if (std::isfinite(value)) {
          mean.add(value);
        } else {
          left_out_.values(step.layer(), kNonFinite);
        }
      }
    }
  }

  const TraceReader* trace_ = nullptr;
  TraceShape shape_;
  std::array<bool, kDrifting.size()> has_{}, seen_{};  // of this trace, of any
  std::map<std::pair<std::int64_t, std::int32_t>, std::vector<std::int64_t>>
      decided_;  // step or -1
  std::vector<Layer> layers_;
  LayerCounts left_out_;
  LeftOut missing_;
};

MetricResult DriftMetric::finish() {
  MetricResult result;
  result.metric = kDriftMetric;
  result.title = "Drift around a position's own decision";
  result.formula = "mean of cos(X(t - 1), X(t)) at offset = t - step that decided the position";
  result.source = "dKV-Cache, arXiv 2505.15781; Elastic-Cache, arXiv 2510.14973";
  ResultAxis offsets{"offset", {}, {}};
  for (std::int64_t offset = -kFarthest; offset <= kFarthest; ++offset) {
    offsets.index.push_back(static_cast<double>(offset));
  }
  std::vector<std::string_view> paths;
  for (std::size_t i = 0; i < kDrifting.size(); ++i) {
    if (!seen_.at(i)) continue;
    const Drifting& what = kDrifting.at(i);
    paths.push_back(spec_of(what.field).path);
    ResultArray array{what.name,
                      "cosine",
                      fmt::format("{}, step before and step", what.description),
                      {shape_.layer_axis(), offsets},
                      {},
                      {}};
    for (const Layer& layer : layers_) {
      for (const RunningMean& mean : layer.means.at(i)) {
        array.values.push_back(mean.mean());
        array.terms.push_back(mean.terms());
      }
    }
    result.arrays.push_back(std::move(array));
  }
  result.computed_from = fmt::format("{}, /frames", fmt::join(paths, ", "));
  result.left_out = without_zeros(missing_);
  left_out_.add_to(result.left_out);
  return result;
}

}  // namespace

std::unique_ptr<StepMetric> make_drift_metric() { return std::make_unique<DriftMetric>(); }

}  // namespace blockscope
