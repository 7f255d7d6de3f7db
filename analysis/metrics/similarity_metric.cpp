#include "analysis/metrics/similarity_metric.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

#include "analysis/metrics/pair_cosines.h"
#include "analysis/pass/exact_values.h"

namespace blockscope {
namespace {

constexpr const char* kSimilarityMetric = "similarity";

class SimilarityMetric final : public StepMetric {
 public:
  explicit SimilarityMetric(bool from_summary) : from_summary_(from_summary) {}

  Needs begin_trace(const TraceReader& trace, const TraceShape& shape) override {
    if (shape_.layers.empty()) {
      shape_ = shape;
      external_ = PairCosines(shape.layers.size(), shape.heads.size());
      internal_ = PairCosines(shape.layers.size(), shape.heads.size());
    }
    const ExactFields exact = exact_fields(trace);
    // The arrays of a continuous model's block may have a sample of its rows.
    const TraceMeta& meta = trace.info().meta;
    summaries_ =
        from_summary_ || !trace.has(exact.external) || meta.block_length < meta.block_tokens;
    field_external_ = summaries_ ? Field::similarity_external : exact.external;
    field_internal_ = summaries_ ? Field::similarity_internal : Field::attention_internal;
    require_field(trace, field_external_, kSimilarityMetric);
    require_field(trace, field_internal_, kSimilarityMetric);
    paths_.insert(
        {std::string(spec_of(field_external_).path), std::string(spec_of(field_internal_).path)});
    return Needs{{field_external_, field_internal_}, !summaries_, false, {}};
  }

  void add_block(const BlockSteps& block) override {
    count_missing_pairs(block, left_out_);
    count_rows_without_prefix(block, left_out_);
  }

  void add(const StepView& step) override {
    if (step.previous() == nullptr) return;
    add_pair(step, field_internal_, internal_);
    const auto keys = [&](const StepRef& of) {
      return shape_.keys_at(step.layer(), of.context_length);
    };
    const bool prefix = keys(step.now()) > 0 && keys(*step.previous()) > 0;
    if (prefix) add_pair(step, field_external_, external_);
  }

  MetricResult finish() override {
    MetricResult result{kSimilarityMetric,
                        "Cross-step similarity of attention outputs",
                        "mean over positions i of cos(X_i(s), X_i(s+1)), X = A_out, A_in",
                        "FlashBlock, arXiv 2602.05305, section 3 and Fig. 5",
                        fmt::format("{}", fmt::join(paths_, ", ")),
                        {},
                        {}};
    const auto add_array = [&](const PairCosines& pairs, const char* name, const char* what) {
      result.arrays.push_back(pairs.grid().means(
          name, "cosine", fmt::format("{}, mean cosine of step and step + 1", what),
          shape_.layer_axis(), shape_.head_axis()));
      pairs.count_left_out(left_out_);
    };
    add_array(external_, "similarity_external", "A_out (attention to the prefix)");
    add_array(internal_, "similarity_internal", "A_in (attention inside the block)");
    result.left_out = without_zeros(left_out_);
    return result;
  }

 private:
  void add_pair(const StepView& step, Field field, PairCosines& pairs) const {
    if (summaries_) {
      pairs.add_means(step, field);
    } else {
      pairs.add(step, field, shape_.heads.size());
    }
  }

  bool from_summary_;
  bool summaries_ = false;
  Field field_external_ = Field::attention_external;
  Field field_internal_ = Field::attention_internal;
  TraceShape shape_;
  PairCosines external_, internal_;
  std::set<std::string> paths_;
  LeftOut left_out_;
};

}  // namespace

std::unique_ptr<StepMetric> make_similarity_metric(const MetricOptions& options) {
  return std::make_unique<SimilarityMetric>(options.from_summary);
}

}  // namespace blockscope
