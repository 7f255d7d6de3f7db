#include "analysis/metrics/selection.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "analysis/pass/exact_values.h"

namespace blockscope {
namespace {

constexpr const char* kSelectionMetric = "selection";
constexpr const char* kDense = "steps that read the whole prefix";
constexpr const char* kTrivial = "rows with N <= k";

}  // namespace

CoveredShare covered_share(std::span<const float> used, std::span<const float> exact,
                           std::span<const std::uint8_t> valid) {
  CoveredShare share;
  for (std::size_t i = 0; i < valid.size(); ++i) {
    if (valid[i] == 0) continue;
    // -inf: no key of the set is visible. Rounding may give a little more than 1.
    share.sum += std::min(1.0, std::exp(double{used[i]} - double{exact[i]}));
    share.terms += 1;
  }
  return share;
}

Needs SelectionMetric::begin_trace(const TraceReader& trace, const TraceShape& shape) {
  require_field(trace, Field::attention_selected, kSelectionMetric);
  const ExactFields exact = exact_fields(trace);
  require_field(trace, Field::shadow_output_error, kSelectionMetric);
  if (counters_.empty()) {
    shape_ = shape;
    counters_.resize(shape.layers.size());
    block_accuracy_ = token_accuracy_ = StepGrid(shape.layers.size(), shape.kv_heads.size());
    covered_ = error_ = StepGrid(shape.layers.size(), shape.heads.size());
    left_out_ = LayerCounts(shape.layers.size());
  }
  path_ = trace.info().path;
  selected_size_ = static_cast<std::size_t>(trace.info().meta.selected_size);
  has_sets_ = has_sets_ && trace.has(Field::set_topk);
  has_token_sets_ = has_token_sets_ && trace.has(Field::set_topk_token);
  Needs needs{{Field::attention_selected, Field::attention_lse_external, exact.lse_external,
               Field::shadow_output_error},
              false,
              false,
              {}};
  if (has_sets_) needs.fields.push_back(Field::set_topk);
  if (has_token_sets_) needs.fields.push_back(Field::set_topk_token);
  return needs;
}

void SelectionMetric::add(const StepView& step) {
  const std::size_t layer = step.layer();
  const auto selected = step.now(Field::attention_selected).ints();
  std::int64_t most = 0;
  for (std::size_t kv_head = 0; kv_head < shape_.kv_slots_at(layer); ++kv_head) {
    const auto set = selected.subspan(kv_head * selected_size_, selected_size_);
    most = std::max(most, static_cast<std::int64_t>(set_length(set)));
  }
  const std::int64_t keys = shape_.keys_at(layer, step.now().context_length);
  if (keys == 0) return left_out_.row(layer, kTrivial);
  if (most == 0 && !reads_nothing(step)) return left_out_.row(layer, kDense);
  if (keys <= most) return left_out_.row(layer, kTrivial);
  try {
    if (has_sets_ && most > 0) add_sets(step);
  } catch (const Error& error) {
    throw CorruptTrace(path_ + ":/attention/selected: row " + std::to_string(step.now().row) +
                       ", layer slot " + std::to_string(layer) + ": " + error.what());
  }
  add_heads(step);
}

/// No key is selected, as at a step that reads everything, but no key was read. SparseD has such
/// steps: its set was taken when the run had no prefix yet.
bool SelectionMetric::reads_nothing(const StepView& step) const {
  const auto used = step.now(Field::attention_lse_external).floats();
  return std::ranges::all_of(
      used, [](float lse) { return lse == -std::numeric_limits<float>::infinity(); });
}

void SelectionMetric::add_sets(const StepView& step) {
  const std::size_t layer = step.layer();
  const auto k = static_cast<std::size_t>(shape_.set_size);
  const auto block = static_cast<std::size_t>(shape_.block_length);
  const auto selected = step.now(Field::attention_selected).ints();
  const ArrayView exact = step.now(Field::set_topk);
  if (exact.empty()) return left_out_.row(layer, "steps without sets");
  OverlapCounter& counter = counters_[layer];
  for (std::size_t kv_head = 0; kv_head < shape_.kv_slots_at(layer); ++kv_head) {
    const auto set = selected.subspan(kv_head * selected_size_, selected_size_);
    const std::size_t compared = std::min(set_length(set), k);
    if (compared == 0) continue;
    counter.assign(set, {});
    const auto share = [&](std::span<const std::int32_t> own) {
      return static_cast<double>(counter.count(own.first(compared)).a) /
             static_cast<double>(compared);
    };
    block_accuracy_.add(layer, kv_head, step.now().step,
                        share(exact.ints().subspan(kv_head * k, k)));
    if (!has_token_sets_) continue;
    const auto tokens =
        step.now(Field::set_topk_token).ints().subspan(kv_head * block * k, block * k);
    double sum = 0.0;
    std::int64_t terms = 0;
    for (std::size_t i = 0; i < block; ++i) {
      if (step.valid()[i] == 0) continue;
      sum += share(tokens.subspan(i * k, k));
      ++terms;
    }
    if (terms == 0) continue;
    token_accuracy_.add(layer, kv_head, step.now().step, sum / static_cast<double>(terms), terms);
  }
}

void SelectionMetric::add_heads(const StepView& step) {
  const std::size_t positions = step.valid().size();
  const auto used = step.now(Field::attention_lse_external).floats();
  const auto exact = step.now(Field::shadow_lse_external).floats();
  const auto error = step.now(Field::shadow_output_error).floats();
  for (std::size_t head = 0; head < shape_.heads.size(); ++head) {
    error_.add(step.layer(), head, step.now().step, double{error[head]});
    const CoveredShare share =
        covered_share(used.subspan(head * positions, positions),
                      exact.subspan(head * positions, positions), step.valid());
    if (share.terms == 0) continue;
    covered_.add(step.layer(), head, step.now().step, share.sum / static_cast<double>(share.terms),
                 share.terms);
  }
}

MetricResult SelectionMetric::finish() {
  MetricResult result;
  result.metric = kSelectionMetric;
  result.title = "What a sparse policy's sets contain";
  result.formula = "|S n S*(t)| / k; mean of exp(L_S - L_out); |out - out*| / |out*|";
  result.source = "MAGE, eq. 1; FlashBlock, Table 3";
  result.computed_from =
      "/attention/selected, /attention/lse_external, /shadow/lse_external, /shadow/output_error";
  if (has_sets_) {
    result.computed_from += ", /sets/topk";
    result.arrays.push_back(block_accuracy_.means(
        "block_accuracy", "share", "share of the block's own top-k set that was read",
        shape_.layer_axis(), shape_.kv_head_axis()));
  }
  if (has_token_sets_) {
    result.computed_from += ", /sets/topk_token";
    result.arrays.push_back(token_accuracy_.means(
        "token_accuracy", "share", "share of each token's own top-k set that was read",
        shape_.layer_axis(), shape_.kv_head_axis()));
  }
  result.arrays.push_back(covered_.means("covered", "share",
                                         "share of the prefix's probability on the keys read",
                                         shape_.layer_axis(), shape_.head_axis()));
  result.arrays.push_back(
      error_.means("output_error", "relative L2",
                   "error of the attention output against exact attention of the same "
                   "queries",
                   shape_.layer_axis(), shape_.head_axis()));
  left_out_.add_to(result.left_out);
  std::int64_t non_finite = 0;
  for (const StepGrid* grid : {&covered_, &error_}) non_finite += grid->non_finite();
  if (non_finite > 0) result.left_out[kNonFinite] = non_finite;
  return result;
}

}  // namespace blockscope
