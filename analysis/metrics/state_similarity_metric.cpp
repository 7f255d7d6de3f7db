// Adjacent-step similarity of the inputs of attention; see similarity_metric.h.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <string>
#include <vector>

#include "analysis/metrics/pair_cosines.h"
#include "analysis/metrics/similarity_metric.h"
#include "analysis/pass/exact_values.h"

namespace blockscope {
namespace {

constexpr const char* kStatesMetric = "similarity_states";

struct State {
  Field field;
  const char* name;
  const char* description;
};

constexpr std::array<State, 4> kStates{
    {{Field::query, "similarity_query", "queries after QK-norm and RoPE"},
     {Field::block_key, "similarity_key", "keys after QK-norm and RoPE (KV similarity)"},
     {Field::block_value, "similarity_value", "values (KV similarity)"},
     {Field::hidden, "similarity_hidden", "input of the layer"}}};

class StateSimilarityMetric final : public StepMetric {
 public:
  Needs begin_trace(const TraceReader& trace, const TraceShape& shape) override {
    // Level outputs has queries; the others need level full.
    require_field(trace, Field::query, kStatesMetric);
    if (shape_.layers.empty()) {
      shape_ = shape;
      for (std::size_t i = 0; i < kStates.size(); ++i) {
        pairs_[i] = PairCosines(shape.layers.size(), axis_of(i).size());
      }
    }
    fields_.clear();
    for (std::size_t i = 0; i < kStates.size(); ++i) {
      if (!trace.has(kStates.at(i).field)) continue;
      fields_.push_back(i);
      seen_.at(i) = true;
    }
    Needs needs{{}, true, false, {}};
    for (const std::size_t i : fields_) needs.fields.push_back(kStates.at(i).field);
    return needs;
  }

  void add_block(const BlockSteps& block) override { count_missing_pairs(block, left_out_); }

  void add(const StepView& step) override {
    if (step.previous() == nullptr) return;
    for (const std::size_t i : fields_) {
      const Field field = kStates.at(i).field;
      const bool keys = field == Field::block_key || field == Field::block_value;
      pairs_[i].add(step, field, keys ? shape_.kv_slots_at(step.layer()) : axis_of(i).size());
    }
  }

  MetricResult finish() override {
    MetricResult result{kStatesMetric,
                        "Cross-step similarity of queries, keys, values and hidden states",
                        "mean over positions i of cos(X_i(s), X_i(s+1)), X = q, K, V, h",
                        "Fast-dLLM, arXiv 2505.22618, Fig. 3 (keys, values); FlashBlock, arXiv "
                        "2602.05305, section 3 (the measure)",
                        "",
                        {},
                        {}};
    std::vector<std::string_view> paths;
    for (std::size_t i = 0; i < kStates.size(); ++i) {
      if (!seen_.at(i)) continue;
      const State& state = kStates.at(i);
      paths.push_back(spec_of(state.field).path);
      result.arrays.push_back(without_single_column(pairs_[i].grid().means(
          state.name, "cosine",
          fmt::format("{}, mean cosine of step and step + 1", state.description),
          shape_.layer_axis(), axis_of(i))));
      pairs_[i].count_left_out(left_out_);
    }
    result.computed_from = fmt::format("{}", fmt::join(paths, ", "));
    result.left_out = without_zeros(left_out_);
    return result;
  }

 private:
  ResultAxis axis_of(std::size_t i) const {
    switch (kStates.at(i).field) {
      case Field::query:
        return shape_.head_axis();
      case Field::hidden:
        return ResultAxis{"", {0.0}, {}};
      default:
        return shape_.kv_head_axis();
    }
  }

  /// A hidden state has no heads: [layer, 1, step] becomes [layer, step].
  static ResultArray without_single_column(ResultArray array) {
    if (array.axes[1].name.empty()) array.axes.erase(array.axes.begin() + 1);
    return array;
  }

  TraceShape shape_;
  std::vector<std::size_t> fields_;  // of the trace being read
  std::array<bool, kStates.size()> seen_{};
  std::array<PairCosines, kStates.size()> pairs_;
  LeftOut left_out_;
};

}  // namespace

std::unique_ptr<StepMetric> make_state_similarity_metric() {
  return std::make_unique<StateSimilarityMetric>();
}

}  // namespace blockscope
