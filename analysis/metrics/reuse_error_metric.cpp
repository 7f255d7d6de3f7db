// Adds up the sums of ReuseErrorReader over a trace.
#include <algorithm>
#include <cmath>
#include <limits>

#include "analysis/metrics/left_out.h"
#include "analysis/metrics/reuse_error.h"

namespace blockscope {
namespace {

using Rule = ReuseErrorReader::Rule;

class ReuseErrorMetric : public StepMetric {
 public:
  explicit ReuseErrorMetric(const MetricOptions& options)
      : reader_(options.taus, options.count, options.from_summary) {}

  Needs begin_trace(const TraceReader& trace, const TraceShape& shape) override {
    const Needs needs = reader_.begin_trace(trace, shape, "the reuse error");
    if (layers_.empty()) {
      shape_ = shape;
      layers_.resize(shape.layers.size());
      for (Layer& layer : layers_) layer.left_out.resize(reader_.taus().size());
    }
    if (computed_from_.empty()) computed_from_ = reader_.computed_from();
    if (computed_from_ != reader_.computed_from()) computed_from_ += ", " + reader_.computed_from();
    return needs;
  }

  void add_block(const BlockSteps& block) override { count_rows_without_prefix(block, left_out_); }
  void add(const StepView& step) override;
  MetricResult finish() override;

 private:
  /// Reused and recomputed sums of one (tau, head, step).
  struct Cell {
    ReuseErrorSums reused, recomputed;
  };
  struct Layer {
    std::vector<std::vector<Cell>> steps;  // [step - 1][tau * heads + head]
    std::vector<LeftOutSteps> left_out;    // [taus]
  };
  Cell over_steps(std::size_t tau, std::size_t layer, std::size_t head) const;
  Cell over_heads(std::size_t tau) const;
  void add_step_arrays(MetricResult& result) const;
  void add_pooled_arrays(MetricResult& result) const;
  /// Three arrays of `axes` from the sums of their cells, named with `suffix`.
  void add_arrays(MetricResult& result, const std::string& suffix, const std::string& where,
                  const std::vector<ResultAxis>& axes,
                  const std::vector<ReuseErrorSums>& cells) const;
  void add_tau_arrays(MetricResult& result) const;
  void count_left_out(MetricResult& result) const;
  std::size_t num_steps() const;
  ResultAxis tau_axis() const;

  ReuseErrorReader reader_;
  TraceShape shape_;
  std::string computed_from_;
  LeftOut left_out_;
  std::vector<Layer> layers_;
};

void ReuseErrorMetric::add(const StepView& step) {
  if (shape_.keys_at(step.layer(), step.now().context_length) == 0) return;
  Layer& layer = layers_[step.layer()];
  const std::size_t heads = shape_.heads.size();
  const std::vector<ReuseErrorReader::Tau>& taus = reader_.read(step);
  const auto index = static_cast<std::size_t>(step.now().step - 1);
  if (layer.steps.size() <= index) {
    layer.steps.resize(index + 1, std::vector<Cell>(taus.size() * heads));
  }
  for (std::size_t t = 0; t < taus.size(); ++t) {
    if (taus[t].rule == Rule::hidden) ++layer.left_out[t].hidden;
    if (taus[t].rule == Rule::unknown) ++layer.left_out[t].unknown;
    for (std::size_t head = 0; head < taus[t].heads.size(); ++head) {
      const ReuseErrorSums& sums = taus[t].heads[head];
      Cell& cell = layer.steps[index][t * heads + head];
      if (!sums.finite()) {
        ++layer.left_out[t].non_finite;
      } else {
        (taus[t].rule == Rule::reused ? cell.reused : cell.recomputed).add(sums);
      }
    }
  }
}

ReuseErrorMetric::Cell ReuseErrorMetric::over_steps(std::size_t tau, std::size_t layer,
                                                    std::size_t head) const {
  Cell total;
  for (const std::vector<Cell>& step : layers_[layer].steps) {
    total.reused.add(step[tau * shape_.heads.size() + head].reused);
    total.recomputed.add(step[tau * shape_.heads.size() + head].recomputed);
  }
  return total;
}

ReuseErrorMetric::Cell ReuseErrorMetric::over_heads(std::size_t tau) const {
  Cell total;
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    for (std::size_t head = 0; head < shape_.heads.size(); ++head) {
      const Cell cell = over_steps(tau, layer, head);
      total.reused.add(cell.reused);
      total.recomputed.add(cell.recomputed);
    }
  }
  return total;
}

std::size_t ReuseErrorMetric::num_steps() const {
  std::size_t steps = 0;
  for (const Layer& layer : layers_) steps = std::max(steps, layer.steps.size());
  return steps;
}

ResultAxis ReuseErrorMetric::tau_axis() const { return {"tau", reader_.taus(), {}}; }

void ReuseErrorMetric::add_step_arrays(MetricResult& result) const {
  ResultAxis steps{"step", {}, {}};
  for (std::size_t s = 1; s <= num_steps(); ++s) steps.index.push_back(static_cast<double>(s));
  std::vector<ReuseErrorSums> cells;
  for (std::size_t t = 0; t < reader_.taus().size(); ++t) {
    for (const Layer& layer : layers_) {
      for (std::size_t head = 0; head < shape_.heads.size(); ++head) {
        for (std::size_t s = 0; s < steps.index.size(); ++s) {
          cells.push_back(s < layer.steps.size()
                              ? layer.steps[s][t * shape_.heads.size() + head].reused
                              : ReuseErrorSums{});
        }
      }
    }
  }
  add_arrays(result, "", "where reused",
             {tau_axis(), shape_.layer_axis(), shape_.head_axis(), steps}, cells);
}

void ReuseErrorMetric::add_pooled_arrays(MetricResult& result) const {
  std::vector<ReuseErrorSums> heads, layers;
  for (std::size_t t = 0; t < reader_.taus().size(); ++t) {
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      layers.emplace_back();
      for (std::size_t head = 0; head < shape_.heads.size(); ++head) {
        heads.push_back(over_steps(t, layer, head).reused);
        layers.back().add(heads.back());
      }
    }
  }
  add_arrays(result, "_head", "all reused steps of a head together",
             {tau_axis(), shape_.layer_axis(), shape_.head_axis()}, heads);
  add_arrays(result, "_layer", "all reused steps and heads of a layer together",
             {tau_axis(), shape_.layer_axis()}, layers);
}

void ReuseErrorMetric::add_arrays(MetricResult& result, const std::string& suffix,
                                  const std::string& where, const std::vector<ResultAxis>& axes,
                                  const std::vector<ReuseErrorSums>& cells) const {
  ResultArray l2{"relative_l2" + suffix, "1", "sqrt(sum e^2 / sum ref^2), " + where, axes, {}, {}};
  ResultArray l1{"mean_l1" + suffix, "1", "mean |e| per channel, " + where, axes, {}, {}};
  ResultArray cosine{
      "cosine" + suffix, "cosine", "of merged and exact output, " + where, axes, {}, {}};
  for (const ReuseErrorSums& sums : cells) {
    l2.values.push_back(sums.relative_l2());
    l1.values.push_back(sums.mean_l1());
    cosine.values.push_back(sums.cosine());
    l2.terms.push_back(sums.terms);
  }
  l1.terms = cosine.terms = l2.terms;
  for (ResultArray* array : {&l2, &l1, &cosine}) result.arrays.push_back(std::move(*array));
}

void ReuseErrorMetric::add_tau_arrays(MetricResult& result) const {
  ResultArray reused{"relative_l2_tau", "1", "reused steps, all heads", {tau_axis()}, {}, {}};
  ResultArray all{"relative_l2_all_steps",
                  "1",
                  "all steps and heads; recomputed steps add no error",
                  {tau_axis()},
                  {},
                  {}};
  for (std::size_t t = 0; t < reader_.taus().size(); ++t) {
    Cell cell = over_heads(t);
    reused.values.push_back(cell.reused.relative_l2());
    reused.terms.push_back(cell.reused.terms);
    cell.reused.add(cell.recomputed);
    const bool known = std::ranges::all_of(
        layers_, [t](const Layer& layer) { return layer.left_out[t].unknown == 0; });
    all.values.push_back(known ? cell.reused.relative_l2()
                               : std::numeric_limits<double>::quiet_NaN());
    all.terms.push_back(known ? cell.reused.terms : 0);
  }
  result.arrays.push_back(std::move(reused));
  result.arrays.push_back(std::move(all));
}

void ReuseErrorMetric::count_left_out(MetricResult& result) const {
  result.left_out = left_out_;
  for (std::size_t t = 0; t < reader_.taus().size(); ++t) {
    std::vector<LeftOutSteps> layers;
    for (const Layer& layer : layers_) layers.push_back(layer.left_out[t]);
    count_left_out_steps(layers, tau_axis().label(t), "error", result.left_out);
  }
  result.left_out = without_zeros(result.left_out);
}

MetricResult ReuseErrorMetric::finish() {
  MetricResult result;
  result.metric = "reuse_error";
  result.title = "One-step reuse error";
  result.formula =
      "e = merge(A_out^src, L_out^src, A_in, L_in) - merge(A_out, L_out, A_in, L_in), src = last "
      "step that reads under the rule";
  result.source = "FlashBlock (arXiv 2602.05305), section 4.2, eq. 9";
  result.computed_from = computed_from_;
  add_step_arrays(result);
  add_pooled_arrays(result);
  add_tau_arrays(result);
  count_left_out(result);
  return result;
}

}  // namespace

std::unique_ptr<StepMetric> make_reuse_error(const MetricOptions& options) {
  return std::make_unique<ReuseErrorMetric>(options);
}

}  // namespace blockscope
