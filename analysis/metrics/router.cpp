#include "analysis/metrics/router.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "analysis/math/running_mean.h"
#include "analysis/metrics/layer_counts.h"
#include "analysis/pass/exact_values.h"
#include "decode_record/base/nan.h"

namespace blockscope {
namespace {

constexpr const char* kRouterMetric = "router";
class RouterMetric final : public StepMetric {
 public:
  Needs begin_trace(const TraceReader& trace, const TraceShape& shape) override {
    require_field(trace, Field::router_expert, kRouterMetric);
    const TraceMeta& meta = trace.info().meta;
    if (layers_.empty()) {
      shape_ = shape;
      num_experts_ = meta.num_experts;
      per_token_ = static_cast<std::size_t>(meta.experts_per_token);
      layers_.resize(shape.layers.size());
      for (Layer& layer : layers_) layer.chosen.assign(static_cast<std::size_t>(num_experts_), 0);
      agreement_ = StepGrid(shape.layers.size(), 1);
      left_out_ = LayerCounts(shape.layers.size());
    }
    const auto per_token = static_cast<std::int64_t>(per_token_);
    if (meta.num_experts != num_experts_ || meta.experts_per_token != per_token) {
      throw UsageError(fmt::format(
          "{}: expected {} of {} experts a row, as in the first trace, got {} of {}. HINT: analyse "
          "traces of one model together.",
          trace.info().path, per_token, num_experts_, meta.experts_per_token, meta.num_experts));
    }
    return Needs{{Field::router_expert}, true, false, {}};
  }

  void add_block(const BlockSteps& block) override { count_missing_pairs(block, pairs_left_out_); }

  void add(const StepView& step) override {
    const ArrayView now = step.now(Field::router_expert);
    if (now.empty()) return left_out_.row(step.layer(), "steps without router choices");
    Layer& layer = layers_[step.layer()];
    const ArrayView before =
        step.previous() == nullptr ? ArrayView{} : step.previous(Field::router_expert);
    double shared = 0.0;
    std::int64_t pairs = 0;
    for (std::size_t i = 0; i < step.valid().size(); ++i) {
      if (step.valid()[i] == 0) continue;
      const auto chosen = now.ints().subspan(i * per_token_, per_token_);
      if (chosen[0] < 0) continue;
      ++layer.rows;
      for (const std::int32_t expert : chosen) {
        if (expert >= 0) ++layer.chosen[static_cast<std::size_t>(expert)];
      }
      if (before.empty() || step.previous_valid()[i] == 0) continue;
      const auto earlier = before.ints().subspan(i * per_token_, per_token_);
      if (earlier[0] < 0) continue;
      const auto kept = std::ranges::count_if(chosen, [&](std::int32_t expert) {
        return std::ranges::find(earlier, expert) != earlier.end();
      });
      shared += static_cast<double>(kept) / static_cast<double>(per_token_);
      ++pairs;
    }
    if (pairs == 0) return;
    agreement_.add(step.layer(), 0, step.now().step, shared / static_cast<double>(pairs), pairs);
  }

  MetricResult finish() override {
    MetricResult result;
    result.metric = kRouterMetric;
    result.title = "Experts chosen by the routers";
    result.formula = "share of rows per expert; -sum p ln p; |C(s) n C(s-1)| / k";
    result.source = "counts of the routers' choices, Qwen3-MoE and LLaDA2 MoE";
    result.computed_from = "/router/expert";
    result.arrays = {usage(), entropy(), agreement()};
    left_out_.add_to(result.left_out);
    for (const auto& [reason, count] : without_zeros(pairs_left_out_)) {
      result.left_out[reason] += count;
    }
    return result;
  }

 private:
  struct Layer {
    std::vector<std::int64_t> chosen;  // [expert] rows
    std::int64_t rows = 0;
  };

  ResultArray usage() const {
    ResultArray array{"usage", "share", "share of rows that chose the expert", {}, {}, {}};
    ResultAxis experts{"expert", {}, {}};
    for (std::int64_t e = 0; e < num_experts_; ++e) experts.index.push_back(static_cast<double>(e));
    array.axes = {shape_.layer_axis(), experts};
    for (const Layer& layer : layers_) {
      for (const std::int64_t count : layer.chosen) {
        array.values.push_back(layer.rows == 0 ? kNaN : share(count, layer.rows));
        array.terms.push_back(layer.rows);
      }
    }
    return array;
  }

  ResultArray entropy() const {
    ResultArray array{"entropy",
                      "nats",
                      fmt::format("entropy of the usage, at most ln {}", num_experts_),
                      {shape_.layer_axis()},
                      {},
                      {}};
    for (const Layer& layer : layers_) {
      double sum = 0.0;
      for (const std::int64_t count : layer.chosen) {
        if (count == 0) continue;
        const double p = share(count, layer.rows) / static_cast<double>(per_token_);
        sum -= p * std::log(p);
      }
      array.values.push_back(layer.rows == 0 ? kNaN : sum);
      array.terms.push_back(layer.rows);
    }
    return array;
  }

  ResultArray agreement() const {
    ResultArray array{"agreement",
                      "share",
                      "share of a position's experts that it also chose at the previous step",
                      {shape_.layer_axis(), agreement_.step_axis()},
                      {},
                      {}};
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      agreement_.append_steps(array, layer, 0, 1, agreement_.num_steps());
    }
    return array;
  }

  static double share(std::int64_t count, std::int64_t rows) {
    return static_cast<double>(count) / static_cast<double>(rows);
  }

  TraceShape shape_;
  std::int64_t num_experts_ = 0;
  std::size_t per_token_ = 0;
  std::vector<Layer> layers_;  // [layer]
  StepGrid agreement_;
  LayerCounts left_out_;
  LeftOut pairs_left_out_;
};

}  // namespace

std::unique_ptr<StepMetric> make_router_metric() { return std::make_unique<RouterMetric>(); }

}  // namespace blockscope
