#include "analysis/metrics/recall.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>

#include "analysis/math/set_loops.h"
#include "analysis/pass/exact_values.h"

namespace blockscope {
namespace {

std::string normaliser_of(const TraceReader& trace) {
  return trace.info().meta.set_normaliser == SetNormaliser::prefix ? "prefix" : "prefix+block";
}

std::string trivial(std::int64_t size) {
  return "rows with N <= k (k = " + std::to_string(size) + ")";
}

/// Runs `body`, and adds the place of the set to its errors.
template <class Body>
void at_set(const std::string& path, const StepView& step, std::size_t kv_head, const Body& body) {
  try {
    body();
  } catch (const CorruptTrace&) {
    throw;
  } catch (const Error& error) {
    throw CorruptTrace(path + ":/sets/topk: row " + std::to_string(step.now().row) +
                       ", layer slot " + std::to_string(step.layer()) + ", KV head slot " +
                       std::to_string(kv_head) + ": " + error.what());
  }
}

}  // namespace

std::vector<std::int64_t> resolve_set_sizes(const std::vector<std::int64_t>& wanted,
                                            std::int64_t set_size) {
  std::vector<std::int64_t> sizes = wanted;
  if (sizes.empty()) {
    for (std::int64_t size = 1; size < set_size; size *= 2) sizes.push_back(size);
    sizes.push_back(set_size);
  }
  for (const std::int64_t size : sizes) {
    if (size < 1 || size > set_size) {
      throw UsageError("set size: expected 1 to " + std::to_string(set_size) +
                       ", the k of the trace's sets, got " + std::to_string(size) +
                       ". HINT: capture with a larger --set-size");
    }
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

double SetRecall::of(std::span<const std::int32_t> first, std::span<const std::int32_t> now) {
  if (set_length(first) < first.size() || set_length(now) < now.size()) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  checker_.check(now);
  table_.assign(first);
  ranks_.resize(now.size());
  table_.ranks_of(now, ranks_);
  return static_cast<double>(count_ranks_below(ranks_, static_cast<std::int32_t>(first.size()))) /
         static_cast<double>(first.size());
}

void RecallMetric::begin_shape(const TraceShape& shape) {
  shape_ = shape;
  sizes_ = options_.from_summary ? std::vector<std::int64_t>{shape.set_size}
                                 : resolve_set_sizes(options_.set_sizes, shape.set_size);
  const std::size_t columns = shape.kv_heads.size() * sizes_.size();
  for (StepGrid* grid : {&recall_, &covered_, &at_most_, &own_}) {
    *grid = StepGrid(shape.layers.size(), columns);
  }
  left_out_ = LayerCounts(shape.layers.size());
}

Needs RecallMetric::begin_trace(const TraceReader& trace, const TraceShape& shape) {
  require_field(trace, Field::set_topk, "recall");
  exact_fields(trace);
  if (shape_.layers.empty()) {
    begin_shape(shape);
    normaliser_ = normaliser_of(trace);
  } else if (normaliser_ != normaliser_of(trace)) {
    throw UsageError(trace.info().path + ": set_normaliser is " + normaliser_of(trace) +
                     ", that of the previous traces is " + normaliser_ +
                     ". HINT: analyse them one by one");
  }
  path_ = trace.info().path;
  static std::atomic<std::int64_t> traces = 0;
  trace_ = ++traces;
  if (options_.from_summary) return {{Field::set_recall, Field::set_covered}, false, false, {}};
  return {{Field::set_topk, Field::set_probability}, false, true, {}};
}

void RecallMetric::add_block(const BlockSteps& block) {
  if (block.steps.size() == 1) ++short_blocks_;
}

void RecallMetric::add(const StepView& step) {
  if (step.now().step <= 1) return check_sets(step);
  const std::size_t layer = step.layer();
  const std::int64_t keys = shape_.keys_at(layer, step.now().context_length);
  for (const std::int64_t size : sizes_) {
    if (keys <= size) left_out_.row(layer, trivial(size));
  }
  if (keys <= sizes_.front()) return;
  if (options_.from_summary) return add_stored(step);
  if (step.first() == nullptr) return left_out_.row(layer, kBehindGap);
  if (step.now(Field::set_topk).empty() || step.first(Field::set_topk).empty()) {
    return left_out_.row(layer, "steps without sets");
  }
  for (std::size_t kv_head = 0; kv_head < shape_.kv_slots_at(layer); ++kv_head) {
    at_set(path_, step, kv_head, [&] { add_head(step, kv_head); });
  }
}

void RecallMetric::check_sets(const StepView& step) const {
  if (options_.from_summary || step.now(Field::set_topk).empty()) return;
  thread_local SetChecker checker;
  const auto k = static_cast<std::size_t>(shape_.set_size);
  for (std::size_t kv_head = 0; kv_head < shape_.kv_slots_at(step.layer()); ++kv_head) {
    const auto set = step.now(Field::set_topk).ints().subspan(kv_head * k, k);
    at_set(path_, step, kv_head, [&] { checker.check(set); });
  }
}

void RecallMetric::add_stored(const StepView& step) {
  const ArrayView recall = step.now(Field::set_recall);
  const ArrayView covered = step.now(Field::set_covered);
  for (std::size_t kv_head = 0; kv_head < shape_.kv_slots_at(step.layer()); ++kv_head) {
    if (recall) recall_.add(step.layer(), kv_head, step.now().step, recall.floats()[kv_head]);
    if (covered) own_.add(step.layer(), kv_head, step.now().step, covered.floats()[kv_head]);
  }
}

RecallMetric::FirstSet& RecallMetric::first_set(const StepView& step, std::size_t kv_head,
                                                Scratch& scratch) const {
  if (scratch.first.size() <= kv_head) scratch.first.resize(kv_head + 1);
  FirstSet& first = scratch.first[kv_head];
  const std::array of{trace_, step.first()->row, static_cast<std::int64_t>(step.layer())};
  if (first.of == of) return first;
  const auto k = static_cast<std::size_t>(shape_.set_size);
  const auto set = step.first(Field::set_topk).ints().subspan(kv_head * k, k);
  first.of = {};
  first.table.assign(set);
  first.length = set_length(set);
  first.of = of;
  return first;
}

void RecallMetric::add_head(const StepView& step, std::size_t kv_head) {
  const auto k = static_cast<std::size_t>(shape_.set_size);
  thread_local Scratch scratch;
  FirstSet& first = first_set(step, kv_head, scratch);
  const auto now = step.now(Field::set_topk).ints().subspan(kv_head * k, k);
  const std::size_t length = std::min(first.length, scratch.checker.check(now));
  const std::int64_t keys = shape_.keys_at(step.layer(), step.now().context_length);
  scratch.ranks.resize(k);
  first.table.ranks_of(now, scratch.ranks);
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    const auto size = static_cast<std::size_t>(sizes_[i]);
    if (keys <= sizes_[i]) break;  // larger sizes are trivial, too
    if (size > length) {
      left_out_.values(step.layer(), "sets with fewer than k members although N > k");
      break;
    }
    const std::int64_t shared =
        count_ranks_below(std::span(scratch.ranks).first(size), static_cast<std::int32_t>(size));
    recall_.add(step.layer(), kv_head * sizes_.size() + i, step.now().step,
                static_cast<double>(shared) / static_cast<double>(size));
  }
  const ArrayView probability = step.now(Field::set_probability);
  if (probability) {
    add_covered(step, kv_head, probability.floats().subspan(kv_head * k, k), length, scratch.ranks);
  }
}

void RecallMetric::add_covered(const StepView& step, std::size_t kv_head,
                               std::span<const float> probability, std::size_t length,
                               std::span<const std::int32_t> ranks) {
  const double smallest = static_cast<double>(probability[length == 0 ? 0 : length - 1]);
  double own = 0.0;
  std::size_t begin = 0;
  const std::int64_t keys = shape_.keys_at(step.layer(), step.now().context_length);
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    const auto size = static_cast<std::size_t>(sizes_[i]);
    if (size > length || keys <= sizes_[i]) break;
    const auto limit = static_cast<std::int32_t>(size);
    const double covered = sum_ranks_below(probability, ranks, limit);
    const std::int64_t fell_out = sizes_[i] - count_ranks_below(ranks, limit);
    own += best_set_loops().sum(probability.data() + begin, size - begin);
    begin = size;
    const std::size_t column = kv_head * sizes_.size() + i;
    covered_.add(step.layer(), column, step.now().step, covered);
    at_most_.add(step.layer(), column, step.now().step,
                 covered + static_cast<double>(fell_out) * smallest);
    own_.add(step.layer(), column, step.now().step, own);
  }
}

ResultArray RecallMetric::means(const StepGrid& grid, const std::string& name,
                                const std::string& description) {
  ResultArray array;
  array.name = name;
  array.unit = "share";
  array.description = description;
  array.axes = {shape_.layer_axis(), shape_.kv_head_axis(), grid.step_axis(), {"k", {}, {}}};
  for (const std::int64_t size : sizes_) array.axes[3].index.push_back(static_cast<double>(size));
  for (std::size_t layer = 0; layer < shape_.layers.size(); ++layer) {
    for (std::size_t kv_head = 0; kv_head < shape_.kv_heads.size(); ++kv_head) {
      grid.append_steps(array, layer, kv_head * sizes_.size(), sizes_.size(), grid.num_steps());
    }
  }
  return array;
}

MetricResult RecallMetric::finish() {
  MetricResult result;
  result.metric = "recall";
  result.title = "Recall of the first step's top-k set";
  result.formula = "r(t) = |S*(1) n S*(t)| / k, t > 1";
  result.source = "MAGE, Fig. 2, eqs. 2-3";
  result.computed_from =
      options_.from_summary ? "/sets/recall, /sets/covered" : "/sets/topk, /sets/probability";
  const std::string over = " (probability over " + normaliser_ + ")";
  result.arrays.push_back(means(recall_, "recall", "share of step 1's set still in this step's"));
  if (!options_.from_summary) {
    result.arrays.push_back(means(covered_, "covered",
                                  "probability on step 1's set at this step, as far as it is in "
                                  "this step's stored set: a lower bound" +
                                      over));
    result.arrays.push_back(means(at_most_, "covered_at_most",
                                  "upper bound: each missing position counts as the k-th" + over));
  }
  result.arrays.push_back(
      means(own_, "covered_by_own", "probability on this step's own set" + over));
  left_out_.add_to(result.left_out);
  if (short_blocks_ > 0) result.left_out[kOneStep] = short_blocks_;
  std::int64_t non_finite = 0;
  for (const StepGrid* grid : {&recall_, &covered_, &at_most_, &own_}) {
    non_finite += grid->non_finite();
  }
  if (non_finite > 0) result.left_out[kNonFinite] = non_finite;
  return result;
}

}  // namespace blockscope
