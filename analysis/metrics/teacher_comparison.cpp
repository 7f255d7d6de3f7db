#include "analysis/metrics/teacher_comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "analysis/metrics/teacher_rows.h"
#include "analysis/metrics/teacher_setup.h"
#include "analysis/metrics/teacher_values.h"
#include "analysis/pass/damage.h"
#include "analysis/pass/exact_values.h"
#include "decode_record/base/error.h"
#include "decode_record/interchange/imported_trajectory.h"

namespace blockscope {
namespace {

/// Values with a slot in both traces.
std::vector<SharedHead> shared(const std::vector<std::int64_t>& a,
                               const std::vector<std::int64_t>& b) {
  std::vector<SharedHead> result;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto at = std::ranges::find(b, a[i]);
    if (at != b.end()) result.push_back({a[i], i, static_cast<std::size_t>(at - b.begin())});
  }
  return result;
}

std::vector<std::int64_t> numbers_of(const std::vector<SharedHead>& shared) {
  std::vector<std::int64_t> result;
  for (const SharedHead& one : shared) result.push_back(one.head);
  return result;
}

/// The layers of one row's dataset.
class RowArrays {
 public:
  RowArrays(const TraceReader& trace, std::int64_t row) : trace_(trace), row_(row) {}

  LayerArray<float> floats(const TeacherQuantityEntry& entry, Field field, std::size_t layer) {
    LayerArray<float> array = shaped<float>(entry, trace_.read_floats_at(field, row_, at(layer)));
    if (entry.heads != TeacherHeads::none) cut_padding(array, layer);
    return array;
  }
  LayerArray<std::int32_t> ints(const TeacherQuantityEntry& entry, Field field, std::size_t layer) {
    return shaped<std::int32_t>(entry, trace_.read_ints_at(field, row_, at(layer)));
  }
  /// Predictions, which have no layer.
  LayerArray<float> floats(const TeacherQuantityEntry& entry, Field field) {
    return shaped<float>(entry, trace_.read_floats(field, row_, 1));
  }

 private:
  static std::int64_t at(std::size_t layer) { return static_cast<std::int64_t>(layer); }
  /// Leaves the layer's own channels where layers differ in size.
  void cut_padding(LayerArray<float>& array, std::size_t layer) const {
    const auto own = static_cast<std::size_t>(trace_.info().meta.channels_at(layer));
    if (array.channels == 1 || own >= array.channels) return;
    const auto begin = array.values.begin();
    const std::size_t vectors = array.values.size() / array.channels;
    for (std::size_t v = 1; v < vectors; ++v) {
      std::copy_n(begin + static_cast<std::ptrdiff_t>(v * array.channels), own,
                  begin + static_cast<std::ptrdiff_t>(v * own));
    }
    array.channels = own;
    array.values.resize(vectors * own);
  }
  template <typename Value>
  LayerArray<Value> shaped(const TeacherQuantityEntry& entry, std::vector<Value> values) const {
    const TraceMeta& meta = trace_.info().meta;
    LayerArray<Value> array;
    array.positions = static_cast<std::size_t>(meta.block_length);
    if (entry.heads == TeacherHeads::query) array.heads = meta.heads.size();
    if (entry.heads == TeacherHeads::kv) array.heads = meta.kv_heads.size();
    array.channels = values.size() / (array.heads * array.positions);
    array.values = std::move(values);
    return array;
  }
  const TraceReader& trace_;
  std::int64_t row_;
};

/// A_out is 0 where no external key was read: some recorders write NaN.
void blank_without_keys(LayerArray<float>& external, const LayerArray<float>& lse) {
  for (std::size_t v = 0; v < lse.values.size(); ++v) {
    if (lse.values[v] != -std::numeric_limits<float>::infinity()) continue;
    const auto begin = external.values.begin() + static_cast<std::ptrdiff_t>(v * external.channels);
    std::fill_n(begin, external.channels, 0.0F);
  }
}

class Comparing {
 public:
  Comparing(const TraceReader& a, const TraceReader& b, TeacherComparison& found)
      : a_(a), b_(b), found_(found) {
    const TraceMeta& here = a.info().meta;
    const TraceMeta& there = b.info().meta;
    if (knows_model_shape(here) && knows_model_shape(there)) {
      layers_ = shared(here.layers, there.layers);
      heads_ = shared(here.heads, there.heads);
      kv_heads_ = shared(here.kv_heads, there.kv_heads);
    }
    found_.layers = numbers_of(layers_);
    found_.heads = numbers_of(heads_);
    cached_ = here.has_cache || there.has_cache;
    for (const TeacherQuantityEntry& entry : teacher_quantities()) {
      TeacherResult& result = found_.results.emplace_back();
      result.quantity = entry.quantity;
      result.missing = missing(entry);
      if (result.missing.empty() && entry.by_layer) result.by_layer.resize(layers_.size());
    }
    if (result(TeacherQuantity::expert).missing.empty()) found_.experts.resize(layers_.size());
  }

  bool anything() const {
    return std::ranges::any_of(found_.results, &std::string::empty, &TeacherResult::missing);
  }

  void add(const TeacherPair& pair) {
    place_ = pair.place();
    RowArrays a(a_, pair.a.row);
    RowArrays b(b_, pair.b.row);
    const auto valid_a = a_.read_ints(Field::step_valid, pair.a.row, 1);
    const auto valid_b = b_.read_ints(Field::step_valid, pair.b.row, 1);
    valid_.assign(valid_a.size(), 0);
    for (std::size_t i = 0; i < valid_.size(); ++i) {
      valid_[i] = valid_a[i] != 0 && valid_b[i] != 0 ? 1 : 0;
    }
    if (pair.a.recorded && pair.b.recorded) {
      ++found_.recorded_rows;
      for (std::size_t layer = 0; layer < layers_.size(); ++layer) add_layer(a, b, layer);
    }
    place_.layer = -1;
    add_predictions(a, b, pair);
  }

 private:
  TeacherResult& result(TeacherQuantity quantity) {
    return found_.results[static_cast<std::size_t>(quantity)];
  }
  bool compares(TeacherQuantity quantity) { return result(quantity).missing.empty(); }

  /// Why a quantity can't be compared; empty: it can.
  std::string missing(const TeacherQuantityEntry& entry) {
    const TraceMeta& here = a_.info().meta;
    const TraceMeta& there = b_.info().meta;
    const auto lacks = [&](Field field) -> std::string {
      const std::string_view path = spec_of(field).path;
      if (!a_.has(field) && !b_.has(field)) return fmt::format("neither has {}", path);
      if (!a_.has(field)) return fmt::format("A has no {}", path);
      if (!b_.has(field)) return fmt::format("B has no {}", path);
      return {};
    };
    if (std::string why = lacks(entry.field); !why.empty()) return why;
    if (entry.by_layer && layers_.empty()) return "no layer was recorded in both";
    if (entry.heads != TeacherHeads::none && heads_.empty()) return "no head was recorded in both";
    if (entry.quantity == TeacherQuantity::merged) {
      for (const Field field : {Field::attention_internal, Field::attention_lse_internal,
                                Field::attention_lse_external}) {
        if (std::string why = lacks(field); !why.empty()) return why;
      }
      if (here.has_residual || there.has_residual) return "a policy merges a third part";
    }
    if (entry.field == Field::router_expert || entry.field == Field::router_weight) {
      if (here.num_experts != there.num_experts) {
        return fmt::format("{} experts in A, {} in B", here.num_experts, there.num_experts);
      }
      if (entry.field == Field::router_weight &&
          here.experts_per_token != there.experts_per_token) {
        return fmt::format("{} experts a token in A, {} in B", here.experts_per_token,
                           there.experts_per_token);
      }
    }
    return {};
  }

  void take(TeacherResult& result, std::size_t layer, const TeacherCounts& counts,
            std::optional<TeacherDifference> difference) {
    result.all.add(counts);
    if (!result.by_layer.empty()) result.by_layer[layer].add(counts);
    if (difference && !result.first) result.first = std::move(difference);
  }

  void add_layer(RowArrays& a, RowArrays& b, std::size_t index) {
    place_.layer = layers_[index].head;
    const std::size_t in_a = layers_[index].a;
    const std::size_t in_b = layers_[index].b;
    const TeacherValues values(place_, valid_);
    LayerArray<float> kept_a[4], kept_b[4];  // A_out, A_in, L_out, L_in
    static constexpr Field kKept[] = {Field::attention_external, Field::attention_internal,
                                      Field::attention_lse_external, Field::attention_lse_internal};
    for (const TeacherQuantityEntry& entry : teacher_quantities()) {
      TeacherResult& of = result(entry.quantity);
      const bool routed = entry.quantity == TeacherQuantity::expert ||
                          entry.quantity == TeacherQuantity::router_weight;
      if (!entry.by_layer || routed || !of.missing.empty()) continue;
      LayerArray<float> here;
      LayerArray<float> there;
      if (entry.quantity == TeacherQuantity::merged) {
        here = merged_output(kept_a[0], kept_a[1], kept_a[2], kept_a[3]);
        there = merged_output(kept_b[0], kept_b[1], kept_b[2], kept_b[3]);
      } else {
        here = a.floats(entry, entry.field, in_a);
        there = b.floats(entry, entry.field, in_b);
      }
      if (entry.quantity == TeacherQuantity::external) {
        blank_without_keys(here, kept_a[2]);
        blank_without_keys(there, kept_b[2]);
      }
      const bool is_lse = entry.field == Field::attention_lse_external ||
                          entry.field == Field::attention_lse_internal;
      const ValueRules rules{found_.tolerance, is_lse ? TeacherRange::log : TeacherRange::vector,
                             cached_};
      TeacherCounts counts;
      auto difference = values.compare(here, there, heads_of(entry), rules, counts);
      take(of, index, counts, std::move(difference));
      const auto kept = std::ranges::find(kKept, entry.field);
      if (kept != std::end(kKept) && entry.quantity != TeacherQuantity::merged) {
        kept_a[kept - kKept] = std::move(here);
        kept_b[kept - kKept] = std::move(there);
      }
    }
    if (compares(TeacherQuantity::expert)) add_router(a, b, index, values);
  }

  std::span<const SharedHead> heads_of(const TeacherQuantityEntry& entry) const {
    static const std::vector<SharedHead> kNone{SharedHead{}};
    if (entry.heads == TeacherHeads::none) return kNone;
    return entry.heads == TeacherHeads::kv ? kv_heads_ : heads_;
  }

  void add_router(RowArrays& a, RowArrays& b, std::size_t index, const TeacherValues& values) {
    const TeacherQuantityEntry& entry = entry_of(TeacherQuantity::expert);
    const auto experts_a = a.ints(entry, Field::router_expert, layers_[index].a);
    const auto experts_b = b.ints(entry, Field::router_expert, layers_[index].b);
    const auto weights_a = a.floats(entry, Field::router_weight, layers_[index].a);
    const auto weights_b = b.floats(entry, Field::router_weight, layers_[index].b);
    TeacherCounts counts;
    auto difference =
        values.experts(experts_a, experts_b, weights_a, weights_b, counts, found_.experts[index]);
    take(result(TeacherQuantity::expert), index, counts, std::move(difference));
    if (!compares(TeacherQuantity::router_weight)) return;
    counts = {};
    difference =
        values.router_weights(experts_a, experts_b, weights_a, weights_b, found_.tolerance, counts);
    take(result(TeacherQuantity::router_weight), index, counts, std::move(difference));
  }

  void add_predictions(RowArrays& a, RowArrays& b, const TeacherPair& pair) {
    if (!compares(TeacherQuantity::token) || !compares(TeacherQuantity::confidence)) return;
    const auto tokens_a = a_.read_ints(Field::prediction_token, pair.a.row, 1);
    const auto tokens_b = b_.read_ints(Field::prediction_token, pair.b.row, 1);
    const TeacherQuantityEntry& entry = entry_of(TeacherQuantity::confidence);
    auto confidence_a = a.floats(entry, Field::prediction_confidence);
    auto confidence_b = b.floats(entry, Field::prediction_confidence);
    TeacherCounts counts;
    std::optional<TeacherDifference> first;
    // A prediction may be at a position that the pass did not compute (logit_shift), so `valid`
    // says nothing; a trace may hold those of masks alone.
    BothValid predicted(tokens_a.size(), 0);
    for (std::size_t p = 0; p < tokens_a.size(); ++p) {
      if (tokens_a[p] < 0 || tokens_b[p] < 0) continue;
      predicted[p] = 1;
      ++counts.elements;
      if (tokens_a[p] == tokens_b[p]) continue;
      const double gap = std::abs(static_cast<double>(confidence_a.values[p]) -
                                  static_cast<double>(confidence_b.values[p]));
      ++counts.different;
      if (std::isfinite(gap)) counts.largest_relative = std::max(counts.largest_relative, gap);
      if (first) continue;
      first.emplace();
      first->place = place_;
      first->place.position = static_cast<std::int64_t>(p);
      first->a = tokens_a[p];
      first->b = tokens_b[p];
      first->relative = gap;
    }
    take(result(TeacherQuantity::token), 0, counts, std::move(first));
    counts = {};
    const ValueRules rules{found_.tolerance, TeacherRange::one, false};
    auto difference = TeacherValues(place_, predicted)
                          .compare(confidence_a, confidence_b, heads_of(entry), rules, counts);
    take(result(TeacherQuantity::confidence), 0, counts, std::move(difference));
  }

  const TraceReader& a_;
  const TraceReader& b_;
  TeacherComparison& found_;
  std::vector<SharedHead> layers_, heads_, kv_heads_;
  bool cached_ = false;
  TeacherPlace place_;
  BothValid valid_;
};

/// What the traces say of their runs that alone makes values differ.
void add_run_notes(const TraceInfo& a, const TraceInfo& b, std::vector<std::string>& notes) {
  for (const TraceInfo* trace : {&a, &b}) {
    const std::string policy = inexact_policy(*trace);
    if (!policy.empty()) {
      notes.push_back(fmt::format("{} ran with {}: its attention is not exact",
                                  trace == &a ? "A" : "B", policy));
    }
  }
  for (const SharedHead& layer : shared(a.meta.layers, b.meta.layers)) {
    const std::int64_t here = a.meta.window_of(layer.head);
    const std::int64_t there = b.meta.window_of(layer.head);
    if (here == there) continue;
    notes.push_back(
        fmt::format("layer {}: window {} in A, {} in B (0: all keys)", layer.head, here, there));
    return;
  }
}

/// Whether a difference comes before another one: by row, then by layer, then by quantity, then by
/// position. Predictions come after all layers.
bool comes_before(const TeacherResult& one, const TeacherResult& other) {
  const auto key = [](const TeacherResult& result) {
    const TeacherPlace& place = result.first->place;
    const std::int64_t layer =
        place.layer < 0 ? std::numeric_limits<std::int64_t>::max() : place.layer;
    return std::tuple(place.row_a, layer, result.quantity, place.position);
  };
  return key(one) < key(other);
}

}  // namespace

void TeacherCounts::add(const TeacherCounts& other) {
  elements += other.elements;
  different += other.different;
  largest = std::max(largest, other.largest);
  largest_relative = std::max(largest_relative, other.largest_relative);
}

void ExpertGaps::add(const ExpertGaps& other) {
  tokens += other.tokens;
  different += other.different;
  swapped += other.swapped;
  for (std::size_t i = 0; i < gaps.size(); ++i) gaps[i] += other.gaps[i];
  unknown += other.unknown;
}

const TeacherResult* TeacherComparison::first() const {
  const TeacherResult* found = nullptr;
  for (const TeacherResult& result : results) {
    if (!result.first) continue;
    if (found == nullptr || comes_before(result, *found)) found = &result;
  }
  return found;
}

TeacherComparison compare_teacher(const std::string& a, const std::string& b,
                                  const TeacherOptions& options) {
  const TraceReader first(a);
  const TraceReader second(b);
  require_one_model(first, second);
  TeacherComparison found;
  found.path_a = first.info().path;
  found.path_b = second.info().path;
  const Tolerance tolerance = tolerance_of(first.info().meta, second.info().meta, options);
  found.tolerance = tolerance.value;
  found.tolerance_reason = tolerance.reason;
  return naming_damage(found.path_b, [&] {
    Comparing comparing(first, second, found);
    if (!comparing.anything()) {
      throw UsageError(fmt::format(
          "{} and {}: expected a quantity that both traces have, found none: {}. HINT: record with "
          "--record outputs (or level=\"outputs\") and the same layers",
          found.path_a, found.path_b, found.results.front().missing));
    }
    const TeacherRows rows(first, second);
    found.sequences = rows.sequences();
    found.notes = rows.notes();
    add_run_notes(first.info(), second.info(), found.notes);
    found.inputs = rows.prompts();
    if (found.inputs) return std::move(found);
    const auto total = std::ssize(rows.pairs());
    for (const TeacherPair& pair : rows.pairs()) {
      found.inputs = rows.inputs(pair);
      if (found.inputs) break;
      comparing.add(pair);
      ++found.rows;
      if (options.progress && !options.progress(found.rows, total)) {
        throw InterruptedError("the comparison was stopped");
      }
    }
    return std::move(found);
  });
}

}  // namespace blockscope
