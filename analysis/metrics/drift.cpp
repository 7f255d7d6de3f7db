#include "analysis/metrics/drift.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "analysis/math/running_mean.h"
#include "analysis/metrics/attention_map.h"
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
  const char* kind_name;  // null: not compared by kind
  const char* description;
};
constexpr std::array<Drifting, 4> kDrifting{
    {{Field::query, "drift_query", nullptr, "queries"},
     {Field::block_key, "drift_key", "drift_kind_key", "keys"},
     {Field::block_value, "drift_value", "drift_kind_value", "values"},
     {Field::hidden, "drift_hidden", "drift_kind_hidden", "inputs of the layer"}}};
// In place of the step that decided a position:
constexpr std::int64_t kUndecided = -1;  // a mask in all steps of the block
constexpr std::int64_t kOfPrompt = -2;
constexpr std::array<const char*, 3> kKinds{"most attended", "other decided", "masks"};

/// Whether the input of a step shows a position as a mask.
bool is_mask(std::int64_t decided, std::int64_t step) {
  return decided == kUndecided || decided >= step;
}

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
    if (knows_kinds()) {
      needs.fields.push_back(Field::attention_lse_external);
      needs.fields.push_back(Field::attention_lse_internal);
    }
    return needs;
  }

  void add_block(const BlockSteps& block) override {
    count_missing_pairs(block, missing_);
    std::vector<std::int64_t>& decided = decided_[{block.sequence, block.block}];
    if (block.steps.empty()) return;
    const std::int64_t in_block =  // of the prompt's end
        std::ssize(trace_->sequence(block.sequence).prompt) - block.steps.front().block_start;
    for (const std::int64_t index : decisions_of(*trace_, block).index) {
      decided.push_back(index >= 0 ? block.steps[static_cast<std::size_t>(index)].step
                        : std::ssize(decided) < in_block ? kOfPrompt
                                                         : kUndecided);
    }
  }

  void add(const StepView& step) override {
    if (step.previous() == nullptr) return;
    const auto& decided = decided_.at({step.now().sequence, step.now().block});
    const std::optional<std::size_t> attended =
        knows_kinds() ? most_attended(step, decided) : std::nullopt;
    for (std::size_t i = 0; i < kDrifting.size(); ++i) {
      if (has_.at(i)) add_field(step, i, decided, attended);
    }
  }

  MetricResult finish() override;

 private:
  using Means = std::array<RunningMean, kOffsets>;
  using KindMeans = std::array<RunningMean, kKinds.size()>;
  struct Layer {
    std::array<Means, kDrifting.size()> means;
    std::array<KindMeans, kDrifting.size()> by_kind;
    std::vector<float> before, now;  // buffers
  };

  bool knows_kinds() const { return has_.at(1); }  // keys, and with them level full

  std::optional<std::size_t> most_attended(const StepView& step,
                                           const std::vector<std::int64_t>& decided);

  void add_field(const StepView& step, std::size_t i, const std::vector<std::int64_t>& decided,
                 std::optional<std::size_t> attended) {
    Layer& layer = layers_[step.layer()];
    const auto before = to_floats(step.previous(kDrifting.at(i).field), layer.before);
    const auto now = to_floats(step.now(kDrifting.at(i).field), layer.now);
    const std::size_t positions = decided.size();
    const auto dim = static_cast<std::size_t>(kDrifting.at(i).field == Field::hidden
                                                  ? shape_.hidden_size
                                                  : shape_.channels_at(step.layer()));
    const std::size_t columns = now.size() / (positions * dim);
    for (std::size_t p = 0; p < positions; ++p) {
      if (decided[p] < 0 && i == 0) {  // counted once, with the queries
        left_out_.values(step.layer(), "positions that were not decided in the block");
      }
      if (step.valid()[p] == 0 || step.previous_valid()[p] == 0) continue;
      const std::int64_t offset = step.now().step - decided[p];
      const bool counts = decided[p] >= 0 && offset >= -kFarthest && offset <= kFarthest;
      RunningMean* const mean =
          counts ? &layer.means.at(i).at(static_cast<std::size_t>(offset + kFarthest)) : nullptr;
      RunningMean* kind = nullptr;
      if (kDrifting.at(i).kind_name != nullptr && attended) {
        if (is_mask(decided[p], step.now().step)) {
          kind = &layer.by_kind.at(i)[2];
        } else if (!is_mask(decided[p], step.now().step - 1)) {
          kind = &layer.by_kind.at(i)[p == *attended ? 0 : 1];
        }
      }
      if (mean == nullptr && kind == nullptr) continue;
      for (std::size_t column = 0; column < columns; ++column) {
        const std::size_t at = (column * positions + p) * dim;
        const double value = cosine(before.subspan(at, dim), now.subspan(at, dim));
        if (std::isfinite(value)) {
          if (mean != nullptr) mean->add(value);
          if (kind != nullptr) kind->add(value);
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
      decided_;  // step, kUndecided or kOfPrompt
  std::vector<Layer> layers_;
  LayerCounts left_out_;
  LeftOut missing_;
};

/// None if no position was decided before the step before, or no mask is left in it.
std::optional<std::size_t> DriftMetric::most_attended(const StepView& step,
                                                      const std::vector<std::int64_t>& decided) {
  thread_local std::vector<float> queries_buffer, keys_buffer;
  const auto queries = to_floats(step.previous(Field::query), queries_buffer);
  const auto keys = to_floats(step.previous(Field::block_key), keys_buffer);
  const auto external = step.previous(Field::attention_lse_external).floats();
  const auto internal = step.previous(Field::attention_lse_internal).floats();
  const TraceMeta& meta = trace_->info().meta;
  const std::size_t positions = decided.size();
  const auto dim = static_cast<std::size_t>(meta.channels_at(step.layer()));
  const std::int64_t before = step.now().step - 1;
  std::vector<double> weight(positions, 0.0);
  bool any = false;
  for (std::size_t head = 0; head < meta.heads.size(); ++head) {
    const std::size_t kv_head = kv_slot_of(*trace_, step.layer(), head);
    for (std::size_t q = 0; q < positions; ++q) {
      if (!is_mask(decided[q], before) || step.previous_valid()[q] == 0) continue;
      const double outside{external[head * positions + q]};
      const double inside{internal[head * positions + q]};
      const double largest = std::max(outside, inside);
      const double lse =
          largest + std::log(std::exp(outside - largest) + std::exp(inside - largest));
      for (std::size_t p = 0; p < positions; ++p) {
        if (is_mask(decided[p], before) || step.previous_valid()[p] == 0) continue;
        double dot = 0.0;
        for (std::size_t d = 0; d < dim; ++d) {
          dot += double{queries[(head * positions + q) * dim + d]} *
                 double{keys[(kv_head * positions + p) * dim + d]};
        }
        weight[p] += std::exp(dot * meta.softmax_scale - lse);
        any = true;
      }
    }
  }
  const auto most = std::ranges::max_element(weight);
  if (!any || !(*most > 0.0)) return std::nullopt;
  return static_cast<std::size_t>(most - weight.begin());
}

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
  for (std::size_t i = 0; i < kDrifting.size(); ++i) {
    const Drifting& what = kDrifting.at(i);
    if (!seen_.at(i) || what.kind_name == nullptr) continue;
    ResultArray array{
        what.kind_name,
        "cosine",
        fmt::format("{} of the most attended token, of other decided ones, and of masks, step "
                    "before and step",
                    what.description),
        {shape_.layer_axis(), {"kind", {}, {kKinds.begin(), kKinds.end()}}},
        {},
        {}};
    for (const Layer& layer : layers_) {
      for (const RunningMean& mean : layer.by_kind.at(i)) {
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
