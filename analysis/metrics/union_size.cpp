#include "analysis/metrics/union_size.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "analysis/pass/exact_values.h"
#include "decode_record/base/nan.h"

namespace blockscope {
namespace {

const std::vector<double> kQuantiles{0.05, 0.5, 0.95, 1.0};

ResultAxis steps_axis() { return {"steps", {}, {"all", "step 1"}}; }
ResultAxis quantile_axis() { return {"quantile", kQuantiles, {"p5", "p50", "p95", "max"}}; }

/// Smallest value that at least this share of the counts does not exceed; NaN without counts.
double quantile(const std::vector<std::int64_t>& counts, double share) {
  const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  if (total == 0) return kNaN;
  // 0.95 * 20 is 19 only up to rounding. Without the epsilon, it would select the 20th value.
  const auto needed = std::max<std::int64_t>(
      1, static_cast<std::int64_t>(std::ceil(share * static_cast<double>(total) - 1e-9)));
  std::int64_t below = 0;
  std::size_t value = 0;
  for (; value < counts.size(); ++value) {
    below += counts[value];
    if (below >= needed) break;
  }
  return static_cast<double>(value);
}

}  // namespace

Needs UnionSizeMetric::begin_trace(const TraceReader& trace, const TraceShape& shape) {
  require_field(trace, Field::set_union_size, "union_size");
  exact_fields(trace);
  if (layers_.empty()) {
    shape_ = shape;
    layers_.resize(shape.layers.size());
    const auto sizes = static_cast<std::size_t>(shape.set_size * shape.block_length) + 1;
    for (Layer& layer : layers_) layer.all = layer.first = Counts(sizes, 0);
    mean_ = StepGrid(shape.layers.size(), shape.kv_heads.size());
    left_out_ = LayerCounts(shape.layers.size());
  }
  path_ = trace.info().path;
  from_tokens_ = !options_.from_summary && trace.has(Field::set_topk_token);
  return {{from_tokens_ ? Field::set_topk_token : Field::set_union_size}, false, false, {}};
}

std::int64_t UnionSizeMetric::union_size(const StepView& step, std::size_t kv_head) {
  Layer& layer = layers_[step.layer()];
  if (!from_tokens_) {
    ++layer.stored;
    return step.now(Field::set_union_size).ints()[kv_head];
  }
  ++layer.from_tokens;
  const auto block = static_cast<std::size_t>(shape_.block_length);
  const auto k = static_cast<std::size_t>(shape_.set_size);
  const auto sets = step.now(Field::set_topk_token).ints().subspan(kv_head * block * k, block * k);
  if (step.num_valid() == shape_.block_length) return layer.counter.count(sets);
  layer.valid_sets.clear();
  for (std::size_t i = 0; i < block; ++i) {
    if (step.valid()[i] == 0) continue;
    const auto set = sets.subspan(i * k, k);
    layer.valid_sets.insert(layer.valid_sets.end(), set.begin(), set.end());
  }
  return layer.counter.count(layer.valid_sets);
}

void UnionSizeMetric::add(const StepView& step) {
  const std::size_t slot = step.layer();
  if (shape_.keys_at(slot, step.now().context_length) <= shape_.set_size) {
    return left_out_.row(slot, "rows with N <= k");
  }
  if (step.now(from_tokens_ ? Field::set_topk_token : Field::set_union_size).empty()) {
    return left_out_.row(slot, "steps without sets");
  }
  Layer& layer = layers_[slot];
  for (std::size_t kv_head = 0; kv_head < shape_.kv_slots_at(slot); ++kv_head) {
    std::int64_t size = 0;
    try {
      size = union_size(step, kv_head);
    } catch (const Error& error) {
      throw CorruptTrace(path_ + ":/sets/topk_token: row " + std::to_string(step.now().row) +
                         ", layer slot " + std::to_string(slot) + ", KV head slot " +
                         std::to_string(kv_head) + ": " + error.what());
    }
    // A value outside its limits was not written (-1, or sets of padding), or is not a union.
    if (size < shape_.set_size || size >= static_cast<std::int64_t>(layer.all.size())) {
      left_out_.values(slot, "unions below k or above k * B, or not recorded");
      continue;
    }
    mean_.add(slot, kv_head, step.now().step,
              static_cast<double>(size) / static_cast<double>(shape_.set_size));
    ++layer.all[static_cast<std::size_t>(size)];
    if (step.now().step == 1) ++layer.first[static_cast<std::size_t>(size)];
  }
}

ResultArray UnionSizeMetric::histogram() const {
  ResultArray array;
  array.name = "union_histogram";
  array.unit = "count";
  array.description = "rows x KV heads by |U| / k; bins are [left, right)";
  ResultAxis bins{"bin", {}, {}};
  const double span = static_cast<double>(shape_.block_length - 1) / kUnionBinWidth;
  const auto num_bins = static_cast<std::size_t>(std::floor(span)) + 1;
  for (std::size_t i = 0; i < num_bins; ++i) {
    ResultAxis edges{"",
                     {1.0 + static_cast<double>(i) * kUnionBinWidth,
                      1.0 + static_cast<double>(i + 1) * kUnionBinWidth},
                     {}};
    bins.index.push_back(edges.index[0]);
    bins.labels.push_back("[" + edges.label(0) + ", " + edges.label(1) + ")");
  }
  array.axes = {shape_.layer_axis(), steps_axis(), bins};
  for (const Layer& layer : layers_) {
    for (const Counts* counts : {&layer.all, &layer.first}) {
      std::vector<double> sums(num_bins, 0.0);
      for (std::size_t size = 0; size < counts->size(); ++size) {
        if ((*counts)[size] == 0) continue;
        const double above = static_cast<double>(size) - static_cast<double>(shape_.set_size);
        const double bin = above / (static_cast<double>(shape_.set_size) * kUnionBinWidth);
        sums[static_cast<std::size_t>(bin)] += static_cast<double>((*counts)[size]);
      }
      array.values.insert(array.values.end(), sums.begin(), sums.end());
    }
  }
  return array;
}

ResultArray UnionSizeMetric::quantiles(bool per_layer) const {
  ResultArray array;
  array.name = per_layer ? "union_quantiles" : "union_quantiles_all";
  array.unit = "1";
  array.description = "quantiles of |U| / k: the smallest value that this share does not exceed";
  array.axes = {steps_axis(), quantile_axis()};
  if (per_layer) array.axes.insert(array.axes.begin(), shape_.layer_axis());
  const auto append = [&](const Counts& counts) {
    for (const double share : kQuantiles) {
      array.values.push_back(quantile(counts, share) / static_cast<double>(shape_.set_size));
      array.terms.push_back(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
    }
  };
  Counts all(layers_.front().all.size(), 0);
  Counts first = all;
  for (const Layer& layer : layers_) {
    if (per_layer) {
      append(layer.all);
      append(layer.first);
    }
    std::transform(all.begin(), all.end(), layer.all.begin(), all.begin(), std::plus<>());
    std::transform(first.begin(), first.end(), layer.first.begin(), first.begin(), std::plus<>());
  }
  if (!per_layer) {
    append(all);
    append(first);
  }
  return array;
}

MetricResult UnionSizeMetric::finish() {
  MetricResult result;
  result.metric = "union_size";
  result.title = "Union of the tokens' top-k sets";
  result.formula = "|U_i Top-k(i)| / k, i over the block";
  result.source = "MAGE, Fig. 1a";
  bool tokens = false;
  bool stored = false;
  for (const Layer& layer : layers_) {
    tokens = tokens || layer.from_tokens > 0;
    stored = stored || layer.stored > 0;
  }
  result.computed_from = tokens
                             ? (stored ? "/sets/topk_token, /sets/union_size" : "/sets/topk_token")
                             : "/sets/union_size";
  result.arrays.push_back(mean_.means("union_size", "1", "mean of |U| / k", shape_.layer_axis(),
                                      shape_.kv_head_axis()));
  result.arrays.push_back(histogram());
  result.arrays.push_back(quantiles(true));
  result.arrays.push_back(quantiles(false));
  left_out_.add_to(result.left_out);
  return result;
}

}  // namespace blockscope
