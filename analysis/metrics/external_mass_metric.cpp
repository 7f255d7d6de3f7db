#include "analysis/metrics/external_mass_metric.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <limits>
#include <set>

#include "analysis/math/running_mean.h"
#include "analysis/metrics/left_out.h"
#include "analysis/pass/exact_values.h"

namespace blockscope {
namespace {

constexpr const char* kMassMetric = "external_mass";

class ExternalMassMetric final : public StepMetric {
 public:
  explicit ExternalMassMetric(bool from_summary) : from_summary_(from_summary) {}

  Needs begin_trace(const TraceReader& trace, const TraceShape& shape) override {
    if (shape_.layers.empty()) {
      shape_ = shape;
      grid_ = StepGrid(shape.layers.size(), shape.heads.size());
      non_finite_.assign(shape.layers.size(), 0);
    }
    lse_external_ = exact_fields(trace).lse_external;
    const TraceMeta& meta = trace.info().meta;
    reads_summary_ = from_summary_ || meta.block_length < meta.block_tokens;  // else a sample
    const Needs needs =
        reads_summary_ ? Needs{{Field::external_mass}, false, false, {}}
                       : Needs{{lse_external_, Field::attention_lse_internal}, false, false, {}};
    for (const Field field : needs.fields) {
      require_field(trace, field, kMassMetric);
      paths_.emplace(spec_of(field).path);
    }
    return needs;
  }

  void add_block(const BlockSteps& block) override { count_rows_without_prefix(block, left_out_); }

  void add(const StepView& step) override {
    if (shape_.keys_at(step.layer(), step.now().context_length) == 0) return;
    if (reads_summary_) {
      const auto means = step.now(Field::external_mass).floats().first(shape_.heads.size());
      const std::int64_t terms = step.num_valid();
      non_finite_.at(step.layer()) +=
          terms * grid_.add_row(step.layer(), step.now().step, means, terms);
      return;
    }
    for (std::size_t head = 0; head < shape_.heads.size(); ++head) add_head(step, head);
  }

  MetricResult finish() override {
    for (const std::int64_t count : non_finite_) left_out_[kNonFinite] += count;
    return MetricResult{
        kMassMetric,
        "External mass",
        "mean over positions of exp(L_out) / (exp(L_in) + exp(L_out))",
        "FlashBlock, arXiv 2602.05305, eq. 5: the weight of A_out in the merge",
        fmt::format("{}", fmt::join(paths_, ", ")),
        {grid_.means("external_mass", "share", "share of the attention that goes to the prefix",
                     shape_.layer_axis(), shape_.head_axis())},
        without_zeros(left_out_)};
  }

 private:
  void add_mean(const StepView& step, std::size_t head, double mean, std::int64_t terms) {
    if (!std::isfinite(mean)) {
      non_finite_.at(step.layer()) += terms;
    } else if (terms > 0) {
      grid_.add(step.layer(), head, step.now().step, mean, terms);
    }
  }

  void add_head(const StepView& step, std::size_t head) {
    const std::size_t positions = step.valid().size();
    const auto external = step.now(lse_external_).floats().subspan(head * positions, positions);
    const auto internal =
        step.now(Field::attention_lse_internal).floats().subspan(head * positions, positions);
    double sum = 0.0;
    std::int64_t terms = 0;
    for (std::size_t i = 0; i < positions; ++i) {
      if (step.valid()[i] == 0) continue;
      const double share = external_mass_of(external[i], internal[i]);
      if (std::isnan(share)) {
        ++non_finite_.at(step.layer());
      } else {
        sum += share;
        ++terms;
      }
    }
    if (terms > 0) add_mean(step, head, sum / static_cast<double>(terms), terms);
  }

  bool from_summary_;
  bool reads_summary_ = false;  // of the current trace
  Field lse_external_ = Field::attention_lse_external;
  TraceShape shape_;
  StepGrid grid_;
  std::vector<std::int64_t> non_finite_;  // [layer]
  std::set<std::string> paths_;
  LeftOut left_out_;
};

}  // namespace

/// Never overflows: it takes the exponential of a difference, and 1 / (1 + inf) is 0.
double external_mass_of(float lse_external, float lse_internal) {
  const bool empty = lse_external == -std::numeric_limits<float>::infinity();
  if ((!empty && !std::isfinite(lse_external)) || !std::isfinite(lse_internal)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  return 1.0 / (1.0 + std::exp(double{lse_internal} - double{lse_external}));
}

std::unique_ptr<StepMetric> make_external_mass_metric(const MetricOptions& options) {
  return std::make_unique<ExternalMassMetric>(options.from_summary);
}

}  // namespace blockscope
