// Mean token x token matrices; see similarity_metric.h.
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "analysis/math/cosine.h"
#include "analysis/metrics/left_out.h"
#include "analysis/metrics/similarity_metric.h"
#include "analysis/pass/exact_values.h"

namespace blockscope {
namespace {

constexpr const char* kMatrixMetric = "token_matrix";

/// Sums of matrices [B, B], one per layer.
struct MatrixSums {
  std::vector<std::vector<double>> sums;         // [layer][B * B]
  std::vector<std::vector<std::int64_t>> terms;  // [layer][B * B]
  std::vector<std::int64_t> non_finite;          // [layer]

  void resize(std::size_t layers, std::size_t cells) {
    sums.assign(layers, std::vector<double>(cells, 0.0));
    terms.assign(layers, std::vector<std::int64_t>(cells, 0));
    non_finite.assign(layers, 0);
  }
};

ResultAxis positions(const char* name, std::int64_t length) {
  ResultAxis axis{name, {}, {}};
  for (std::int64_t i = 0; i < length; ++i) axis.index.push_back(static_cast<double>(i));
  return axis;
}

class TokenMatrixMetric final : public StepMetric {
 public:
  Needs begin_trace(const TraceReader& trace, const TraceShape& shape) override {
    if (shape_.layers.empty()) {
      shape_ = shape;
      const auto cells = static_cast<std::size_t>(shape.block_length * shape.block_length);
      external_.resize(shape.layers.size(), cells);
      internal_.resize(shape.layers.size(), cells);
    }
    field_external_ = exact_fields(trace).external;
    require_field(trace, field_external_, kMatrixMetric);
    computed_from_ = std::string(spec_of(field_external_).path) + ", /attention/internal";
    return Needs{{field_external_, Field::attention_internal}, true, false, {}};
  }

  void add_block(const BlockSteps& block) override {
    count_missing_pairs(block, left_out_);
    count_rows_without_prefix(block, left_out_);
  }

  void add(const StepView& step) override {
    if (step.previous() == nullptr) return;
    add_pair(step, Field::attention_internal, internal_);
    const auto keys = [&](const StepRef& of) {
      return shape_.keys_at(step.layer(), of.context_length);
    };
    const bool prefix = keys(step.now()) > 0 && keys(*step.previous()) > 0;
    if (prefix) add_pair(step, field_external_, external_);
  }

  MetricResult finish() override {
    MetricResult result{kMatrixMetric,
                        "Token x token similarity across adjacent steps",
                        "C_ij = mean over step pairs of cos(X_i(s), X_j(s+1)), heads concatenated",
                        "FlashBlock, arXiv 2602.05305, Fig. 1",
                        computed_from_,
                        {},
                        {}};
    add_array(result, "token_matrix_external", "A_out", external_);
    add_array(result, "token_matrix_internal", "A_in", internal_);
    result.left_out = without_zeros(left_out_);
    return result;
  }

 private:
  void add_pair(const StepView& step, Field field, MatrixSums& matrices) const {
    thread_local std::vector<float> cosines;
    cross_cosines(step.previous(field), step.now(field), shape_.heads.size(), step.previous_valid(),
                  step.valid(), cosines);
    std::vector<double>& sums = matrices.sums.at(step.layer());
    std::vector<std::int64_t>& terms = matrices.terms.at(step.layer());
    const std::size_t length = step.valid().size();
    for (std::size_t cell = 0; cell < cosines.size(); ++cell) {
      if (std::isfinite(cosines[cell])) {
        sums[cell] += double{cosines[cell]};
        ++terms[cell];
      } else if (step.previous_valid()[cell / length] != 0 && step.valid()[cell % length] != 0) {
        ++matrices.non_finite.at(step.layer());
      }
    }
  }

  void add_array(MetricResult& result, const char* name, const char* what, MatrixSums& matrices) {
    ResultArray array{name,
                      "cosine",
                      std::string(what) + ", mean cosine of position i at a step and j at the next",
                      {shape_.layer_axis(), positions("position", shape_.block_length),
                       positions("next_position", shape_.block_length)},
                      {},
                      {}};
    for (std::size_t layer = 0; layer < matrices.sums.size(); ++layer) {
      for (std::size_t cell = 0; cell < matrices.sums[layer].size(); ++cell) {
        const std::int64_t terms = matrices.terms[layer][cell];
        // Without terms, 0 / 0 gives NaN, which means an empty cell.
        array.values.push_back(matrices.sums[layer][cell] / static_cast<double>(terms));
        array.terms.push_back(terms);
      }
      left_out_[kNonFinite] += matrices.non_finite[layer];
    }
    result.arrays.push_back(std::move(array));
  }

  TraceShape shape_;
  Field field_external_ = Field::attention_external;
  std::string computed_from_;
  MatrixSums external_, internal_;
  LeftOut left_out_;
};

}  // namespace

std::unique_ptr<StepMetric> make_token_matrix_metric() {
  return std::make_unique<TokenMatrixMetric>();
}

}  // namespace blockscope
