// Adds up the sums of KeptReader over a trace.
#include <algorithm>
#include <cmath>

#include "analysis/metrics/kept_pair.h"
#include "analysis/metrics/left_out.h"

namespace blockscope {
namespace {

using Found = KeptReader::Found;

/// Rows of all kinds together, then those of each kind.
constexpr std::size_t kRowSets = 1 + kRowKinds.size();
using RowSets = std::array<KeptTerms, kRowSets>;

void add_to(RowSets& sets, const RowSets& other) {
  for (std::size_t i = 0; i < kRowSets; ++i) sets[i].add(other[i]);
}

/// Those of the summaries by default: tau 1 never reuses, and only inf shows late ages.
std::vector<double> taus_of(const MetricOptions& options) {
  if (options.taus != MetricOptions{}.taus) return options.taus;
  return {kReuseTaus.begin(), kReuseTaus.end()};
}

class KeptMetric : public StepMetric {
 public:
  explicit KeptMetric(const MetricOptions& options)
      : reader_(taus_of(options), options.count, options.from_summary) {}

  Needs begin_trace(const TraceReader& trace, const TraceShape& shape) override {
    const Needs needs = reader_.begin_trace(trace, shape, "the comparison with the kept pair");
    if (layers_.empty()) {
      shape_ = shape;
      layers_.resize(shape.layers.size());
      for (Layer& layer : layers_) layer.left_out.resize(reader_.taus().size());
    }
    if (computed_from_.empty()) computed_from_ = reader_.computed_from();
    if (computed_from_ != reader_.computed_from()) computed_from_ += ", " + reader_.computed_from();
    return needs;
  }

  void add_block(const BlockSteps& block) override {
    reader_.add_block(block);
    count_rows_without_prefix(block, left_out_);
  }
  void add(const StepView& step) override;
  MetricResult finish() override;

 private:
  using Cells = std::vector<RowSets>;  // [tau * columns + column]
  struct Layer {
    std::vector<Cells> steps;  // [step - 1], a column is a head
    std::vector<Cells> ages;   // [age - 1], one column for all heads: arrays by head and age
                               // would be as large as those by head and step
    std::vector<LeftOutSteps> left_out;  // [taus]
  };
  /// The place of an array's axis after tau, rows, layer and head.
  using Along = std::vector<Cells> Layer::*;

  void add_cell(std::vector<Cells>& cells, std::int64_t index, std::size_t columns, std::size_t at,
                const RowSets& sets) const {
    if (std::cmp_less(cells.size(), index)) {
      cells.resize(static_cast<std::size_t>(index), Cells(reader_.taus().size() * columns));
    }
    add_to(cells[static_cast<std::size_t>(index - 1)][at], sets);
  }
  RowSets over_steps(std::size_t tau, std::size_t layer, std::size_t head) const;
  void add_along(MetricResult& result, const std::string& suffix, const std::string& axis,
                 bool by_head, Along along) const;
  void add_pooled(MetricResult& result) const;
  /// Three arrays of `axes` from the sums of their cells, named with `suffix`.
  static void add_arrays(MetricResult& result, const std::string& suffix, const std::string& where,
                         const std::vector<ResultAxis>& axes, const std::vector<KeptTerms>& cells);
  void count_left_out(MetricResult& result) const;
  ResultAxis tau_axis() const { return {"tau", reader_.taus(), {}}; }
  static ResultAxis rows_axis() {
    ResultAxis axis{"rows", {}, {"all"}};
    axis.labels.insert(axis.labels.end(), kRowKinds.begin(), kRowKinds.end());
    return axis;
  }

  KeptReader reader_;
  TraceShape shape_;
  std::string computed_from_;
  LeftOut left_out_;
  std::vector<Layer> layers_;
};

void KeptMetric::add(const StepView& step) {
  if (shape_.keys_at(step.layer(), step.now().context_length) == 0) return;
  Layer& layer = layers_[step.layer()];
  const std::vector<KeptReader::Tau>& taus = reader_.read(step);
  for (std::size_t t = 0; t < taus.size(); ++t) {
    if (taus[t].found == Found::hidden) ++layer.left_out[t].hidden;
    if (taus[t].found == Found::unknown) ++layer.left_out[t].unknown;
    for (std::size_t head = 0; head < taus[t].heads.size(); ++head) {
      RowSets sets;
      for (std::size_t kind = 0; kind < kRowKinds.size(); ++kind) {
        const KeptTerms& terms = taus[t].heads[head][kind];
        if (!terms.finite()) {
          ++layer.left_out[t].non_finite;
          continue;
        }
        sets[0].add(terms);
        sets[1 + kind] = terms;
      }
      const std::size_t heads = shape_.heads.size();
      add_cell(layer.steps, step.now().step, heads, t * heads + head, sets);
      add_cell(layer.ages, taus[t].age, 1, t, sets);
    }
  }
}

RowSets KeptMetric::over_steps(std::size_t tau, std::size_t layer, std::size_t head) const {
  RowSets total;
  for (const Cells& step : layers_[layer].steps) {
    add_to(total, step[tau * shape_.heads.size() + head]);
  }
  return total;
}

void KeptMetric::add_along(MetricResult& result, const std::string& suffix, const std::string& axis,
                           bool by_head, Along along) const {
  std::size_t size = 0;
  for (const Layer& layer : layers_) size = std::max(size, (layer.*along).size());
  ResultAxis last{axis, {}, {}};
  for (std::size_t i = 1; i <= size; ++i) last.index.push_back(static_cast<double>(i));
  const std::size_t columns = by_head ? shape_.heads.size() : 1;
  std::vector<KeptTerms> cells;
  for (std::size_t t = 0; t < reader_.taus().size(); ++t) {
    for (std::size_t rows = 0; rows < kRowSets; ++rows) {
      for (const Layer& layer : layers_) {
        const std::vector<Cells>& found = layer.*along;
        for (std::size_t column = 0; column < columns; ++column) {
          for (std::size_t i = 0; i < size; ++i) {
            cells.push_back(i < found.size() ? found[i][t * columns + column][rows] : KeptTerms{});
          }
        }
      }
    }
  }
  std::vector<ResultAxis> axes{tau_axis(), rows_axis(), shape_.layer_axis()};
  if (by_head) axes.push_back(shape_.head_axis());
  axes.push_back(last);
  add_arrays(result, suffix, "where reused", axes, cells);
}

void KeptMetric::add_pooled(MetricResult& result) const {
  std::vector<KeptTerms> by_head, by_layer, by_rows;
  const std::size_t num_heads = shape_.heads.size();
  for (std::size_t t = 0; t < reader_.taus().size(); ++t) {
    std::vector<RowSets> heads;  // [layer, head]
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      for (std::size_t head = 0; head < num_heads; ++head) {
        heads.push_back(over_steps(t, layer, head));
      }
    }
    for (std::size_t rows = 0; rows < kRowSets; ++rows) {
      by_rows.emplace_back();
      for (std::size_t i = 0; i < heads.size(); ++i) {
        if (i % num_heads == 0) by_layer.emplace_back();
        by_head.push_back(heads[i][rows]);
        by_layer.back().add(heads[i][rows]);
        by_rows.back().add(heads[i][rows]);
      }
    }
  }
  add_arrays(result, "_head", "all reused steps of a head together",
             {tau_axis(), rows_axis(), shape_.layer_axis(), shape_.head_axis()}, by_head);
  add_arrays(result, "_layer", "all reused steps and heads of a layer together",
             {tau_axis(), rows_axis(), shape_.layer_axis()}, by_layer);
  add_arrays(result, "_rows", "all reused steps and heads together", {tau_axis(), rows_axis()},
             by_rows);
}

void KeptMetric::add_arrays(MetricResult& result, const std::string& suffix,
                            const std::string& where, const std::vector<ResultAxis>& axes,
                            const std::vector<KeptTerms>& cells) {
  ResultArray similarity{"similarity_kept" + suffix,
                         "cosine",
                         "mean cosine of A_out and the kept one, " + where,
                         axes,
                         {},
                         {}};
  ResultArray change{
      "lse_change" + suffix, "nats", "mean |L_out - the kept one|, " + where, axes, {}, {}};
  ResultArray error{
      "kept_error" + suffix, "1", "reuse error sqrt(sum e^2 / sum ref^2), " + where, axes, {}, {}};
  for (const KeptTerms& terms : cells) {
    similarity.values.push_back(terms.similarity());
    change.values.push_back(terms.lse_change());
    error.values.push_back(terms.relative_l2());
    similarity.terms.push_back(static_cast<std::int64_t>(terms.rows));
  }
  change.terms = error.terms = similarity.terms;
  for (ResultArray* array : {&similarity, &change, &error}) {
    result.arrays.push_back(std::move(*array));
  }
}

void KeptMetric::count_left_out(MetricResult& result) const {
  result.left_out = left_out_;
  for (std::size_t t = 0; t < reader_.taus().size(); ++t) {
    std::vector<LeftOutSteps> layers;
    for (const Layer& layer : layers_) layers.push_back(layer.left_out[t]);
    count_left_out_steps(layers, tau_axis().label(t), "comparison", result.left_out);
  }
  result.left_out = without_zeros(result.left_out);
}

MetricResult KeptMetric::finish() {
  MetricResult result;
  result.metric = "kept_pair";
  result.title = "Comparison with the kept pair";
  result.formula =
      "mean over rows of cos(A_out, A_out^src) and |L_out - L_out^src|, and the reuse error, src = "
      "last step that reads under the rule; rows: masks, known at src, decided since";
  result.source = "FlashBlock (arXiv 2602.05305), section 4.2, and the calibration of its code";
  result.computed_from = computed_from_;
  add_along(result, "", "step", true, &Layer::steps);
  add_along(result, "_age", "age", false, &Layer::ages);
  add_pooled(result);
  count_left_out(result);
  return result;
}

}  // namespace

std::unique_ptr<StepMetric> make_kept_pair(const MetricOptions& options) {
  return std::make_unique<KeptMetric>(options);
}

}  // namespace blockscope
