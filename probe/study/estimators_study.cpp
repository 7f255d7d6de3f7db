// MAGE (seed 001), Fig. 3: how good the key sets of each method are for the tokens of a block.
// Fig. 1: how many keys the tokens of a block need together, and what one set for all of them costs
// Quest.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "analysis/figures/bar_chart.h"
#include "analysis/figures/line_chart.h"
#include "command_line/interrupt.h"
#include "probe/policies/exact_policy.h"
#include "probe/study/estimator_meter.h"
#include "probe/study/study.h"

namespace blockscope {
namespace {

using Q = EstimateSums;

class EstimateStudy : public PromptStudy {
 public:
  EstimateStudy(const StudyInput& input, bool all_methods)
      : PromptStudy(input), meter_{input.options.set_sizes,
                                   input.options.pages,
                                   all_methods,
                                   input.options.exact_layers,
                                   input.options.policy_seed,
                                   {}} {
    std::ranges::sort(meter_.set_sizes);
    meter_.named = named_methods(input.options, meter_.set_sizes);
  }

  nlohmann::json measure(size_t cell) override {
    EstimatorMeter meter(meter_, input_.model, input_.decode.unmasking.denoising_steps);
    DecodeCallbacks callbacks;
    callbacks.observer = &meter;
    callbacks.interrupted = [] { return InterruptGuard::signal() != 0; };
    const auto exact = make_exact_policy();
    int64_t next_pass = 0;
    decode_batch(*input_.model.model, *exact, input_.decode, {prompts_[cell].prompt.request},
                 next_pass, callbacks);
    InterruptGuard::check();
    return to_json(meter.result());
  }

 protected:
  EstimateResult sum(const std::vector<nlohmann::json>& values) const {
    EstimateResult result = estimates_from_json(values.front());
    for (size_t i = 1; i < values.size(); ++i) result += estimates_from_json(values[i]);
    return result;
  }
  std::string k_text(size_t k) const { return fmt::format("k={}", meter_.set_sizes[k]); }
  std::string prompts_text() const { return fmt::format("{} prompts", prompts_.size()); }

  EstimatorOptions meter_;
};

// ---- Fig. 3 ----

/// A table by method and k, and a column of the CSV.
struct EstimateQuantity {
  const char *name, *title, *caption;
  double (*value)(const EstimateSums&);
};

double est_acc(const EstimateSums& sums) { return sums.mean(Q::kEstAcc); }

const EstimateQuantity kEstimates[] = {
    {"est_acc", "EstAcc: share of each token's own top-k keys in the set",
     "Mean over tokens, KV heads, layers and steps t > 1 of an exact run. SparseD: after its "
     "dense steps. Quest reads whole pages, at least one. As MAGE, eq. 1 and Fig. 3.",
     est_acc},
    {"recall", "Recall: share of the block's top-k set of the same step", "",
     [](const EstimateSums& sums) { return sums.mean(Q::kRecall); }},
    {"covered", "Share of the prefix's probability on the set", "",
     [](const EstimateSums& sums) { return sums.mean(Q::kCovered); }},
    {"relative_l2", "Relative L2 error of the attention output",
     "First order: on the exact run's own queries.",
     [](const EstimateSums& sums) { return sums.relative_l2(); }},
    {"l1", "L1 error of the attention output, mean per element",
     "As FlashBlock, Table 3 (which shows the first layer).",
     [](const EstimateSums& sums) { return sums.mean(Q::kAbsolute); }}};

class EstimatorsStudy : public EstimateStudy {
 public:
  explicit EstimatorsStudy(const StudyInput& input) : EstimateStudy(input, true) {}
  StudyReport report(const std::vector<nlohmann::json>& values) const override;

 private:
  ReportTable table(const EstimateResult& result, const EstimateQuantity& quantity) const;
  NumberTable csv(const EstimateResult& result) const;
};

ReportTable EstimatorsStudy::table(const EstimateResult& result,
                                   const EstimateQuantity& quantity) const {
  ReportTable part{quantity.name, quantity.title, quantity.caption, {{"method"}, {}}};
  std::ranges::replace(part.name, '_', '-');
  for (size_t k = 0; k < result.set_sizes.size(); ++k) part.table.header.push_back(k_text(k));
  for (size_t m = 0; m < result.methods.size(); ++m) {
    std::vector<std::string> row{result.methods[m]};
    bool any = false;
    for (const MethodEstimate& estimate : result.estimates[m]) {
      const double mean = quantity.value(estimate.later());
      any = any || std::isfinite(mean);
      row.push_back(report_number(mean));
    }
    if (any) part.table.rows.push_back(std::move(row));
  }
  return part;
}

NumberTable EstimatorsStudy::csv(const EstimateResult& result) const {
  NumberTable table{{"method", "k", "layer", "head", "step"}, {}};
  for (const EstimateQuantity& quantity : kEstimates) table.header.push_back(quantity.name);
  table.header.push_back("tokens");
  const auto add = [&](size_t m, size_t k, const std::string& layer, const std::string& head,
                       const std::string& step, const EstimateSums& sums) {
    std::vector<std::string>& row = table.rows.emplace_back();
    row = {result.methods[m], std::to_string(result.set_sizes[k]), layer, head, step};
    for (const EstimateQuantity& quantity : kEstimates) {
      const double value = quantity.value(sums);
      row.push_back(std::isfinite(value) ? six_digits(value) : "");
    }
    row.push_back(std::to_string(sums.count[Q::kEstAcc]));
  };
  const auto heads = static_cast<size_t>(input_.model.config.num_heads);
  for (size_t m = 0; m < result.methods.size(); ++m) {
    for (size_t k = 0; k < result.set_sizes.size(); ++k) {
      const MethodEstimate& estimate = result.estimates[m][k];
      add(m, k, "all", "all", "2-", estimate.later());
      for (size_t t = 0; t < estimate.by_step.size(); ++t) {
        add(m, k, "all", "all", std::to_string(t + 1), estimate.by_step[t]);
      }
      for (size_t h = 0; h < estimate.by_head.size(); ++h) {
        add(m, k, std::to_string(h / heads), std::to_string(h % heads), "2-", estimate.by_head[h]);
      }
    }
  }
  return table;
}

StudyReport EstimatorsStudy::report(const std::vector<nlohmann::json>& values) const {
  const EstimateResult result = sum(values);
  StudyReport report;
  for (const EstimateQuantity& quantity : kEstimates) {
    report.tables.push_back(table(result, quantity));
  }
  report.csv = csv(result);
  BarChart bars{.x_label = "", .y_label = "EstAcc, steps t > 1"};
  for (size_t k = 0; k < result.set_sizes.size(); ++k) bars.series.push_back({k_text(k), {}});
  LineChart lines{.x_label = "denoising step t", .y_label = "EstAcc"};
  const size_t middle = result.set_sizes.size() / 2;
  for (size_t m = 0; m < result.methods.size(); ++m) {
    if (result.methods[m] == "mage+flashblock") continue;  // its sets are mage's
    bars.groups.push_back(result.methods[m]);
    for (size_t k = 0; k < result.set_sizes.size(); ++k) {
      bars.series[k].values.push_back(est_acc(result.estimates[m][k].later()));
    }
    Curve curve{.title = result.methods[m], .x = {}, .y = {}};
    const MethodEstimate& estimate = result.estimates[m][middle];
    for (size_t t = 0; t < estimate.by_step.size(); ++t) {
      curve.x.push_back(static_cast<double>(t + 1));
      curve.y.push_back(est_acc(estimate.by_step[t]));
    }
    const bool few = std::ranges::none_of(curve.y, [](double y) { return std::isfinite(y); });
    if (!few) lines.curves.push_back(std::move(curve));
  }
  Figure& by_size = report.figures.emplace_back();
  by_size.name = "estimators";
  by_size.title = "How good each method's set is for the tokens of a block";
  by_size.caption = prompts_text() + "; as MAGE, Fig. 3.";
  draw_bars(bars, by_size);
  by_size.width = 960;
  by_size.height = 400;
  by_size.script = "set xtics rotate by -35\n" + by_size.script;
  Figure& by_step = report.figures.emplace_back();
  by_step.name = "estimators-by-step";
  by_step.title = fmt::format("The same at every step, {}", k_text(middle));
  by_step.caption =
      prompts_text() + "; a method that reads everything at a step has no point at that step.";
  look_like_methods(lines.curves);
  draw_chart(lines, by_step);
  by_step.width = 900;
  return report;
}

// ---- Fig. 1 ----

class UnionStudy : public EstimateStudy {
 public:
  explicit UnionStudy(const StudyInput& input) : EstimateStudy(input, false) {}
  StudyReport report(const std::vector<nlohmann::json>& values) const override;

 private:
  void add_unions(EstimateResult result, StudyReport& report) const;
  void add_quest(const EstimateResult& result, StudyReport& report) const;
};

/// Fig. 1a.
void UnionStudy::add_unions(EstimateResult result, StudyReport& report) const {
  ReportTable unions{"union",
                     "Keys that the tokens of a block need together at step 1, in units of k",
                     "|union of the tokens' top-k sets| / k over blocks, layers and KV heads. As "
                     "MAGE, Fig. 1a.",
                     {{"k", "mean", "median", "95 %", "largest", "n"}, {}}};
  LineChart spread{.x_label = "|union| / k, at most", .y_label = "share of blocks × KV heads"};
  for (size_t k = 0; k < result.set_sizes.size(); ++k) {
    std::vector<int64_t>& sizes = result.unions[k];
    if (sizes.empty()) {
      report.notes.push_back(fmt::format("{}: no prefix is longer", k_text(k)));
      continue;
    }
    std::ranges::sort(sizes);
    const auto size = static_cast<double>(result.set_sizes[k]);
    const auto count = static_cast<double>(sizes.size());
    const auto quantile = [&](double share) {
      return static_cast<double>(sizes[static_cast<size_t>(share * (count - 1.0))]) / size;
    };
    const double mean =
        static_cast<double>(std::accumulate(sizes.begin(), sizes.end(), int64_t{0})) / count / size;
    const std::vector<double> shown{mean, quantile(0.5), quantile(0.95), quantile(1.0)};
    std::vector<std::string> row{std::to_string(result.set_sizes[k])};
    for (const double value : shown) {
      const std::string name = unions.table.header[row.size()];
      row.push_back(fmt::format("{:.2f}", value));
      report.csv.rows.push_back(
          {"union", row.front(), "", name, six_digits(value), std::to_string(sizes.size())});
    }
    row.push_back(std::to_string(sizes.size()));
    unions.table.rows.push_back(std::move(row));
    Curve curve{.title = k_text(k), .x = {}, .y = {}};
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (i + 1 < sizes.size() && sizes[i] == sizes[i + 1]) continue;  // keep the last of equals
      curve.x.push_back(static_cast<double>(sizes[i]) / size);
      curve.y.push_back(static_cast<double>(i + 1) / count);
    }
    spread.curves.push_back(std::move(curve));
  }
  report.tables.push_back(std::move(unions));
  if (spread.curves.empty()) return;
  Figure& figure = report.figures.emplace_back();
  figure.name = "union";
  figure.title = "Keys that the tokens of a block need together";
  figure.caption = prompts_text() + ", step 1; as MAGE, Fig. 1a.";
  draw_chart(spread, figure);
}

/// Fig. 1b.
void UnionStudy::add_quest(const EstimateResult& result, StudyReport& report) const {
  ReportTable quest{
      "quest",
      "EstAcc of Quest at step 1: each token's own pages against one set for the block",
      "Share of each token's own top-k keys. As MAGE, Fig. 1b.",
      {{"page"}, {}}};
  const std::pair<const char*, const char*> kinds[] = {{"token", "quest per token p={}"},
                                                       {"block", "quest p={}"}};
  for (size_t k = 0; k < result.set_sizes.size(); ++k) {
    for (const auto& [of, name] : kinds) {
      quest.table.header.push_back(fmt::format("{} per {}", k_text(k), of));
    }
  }
  BarChart bars{.x_label = "keys per page", .y_label = "EstAcc at t = 1"};
  const size_t middle = result.set_sizes.size() / 2;
  bars.series = {{"per token", {}}, {"per block", {}}};
  for (const int64_t page : input_.options.pages) {
    std::vector<std::string> row{std::to_string(page)};
    bars.groups.push_back(std::to_string(page));
    for (size_t k = 0; k < result.set_sizes.size(); ++k) {
      for (size_t i = 0; i < 2; ++i) {
        const auto& [of, form] = kinds[i];
        const auto m = static_cast<size_t>(
            std::ranges::find(result.methods, fmt::format(fmt::runtime(form), page)) -
            result.methods.begin());
        const EstimateSums& sums = result.estimates.at(m)[k].by_step.front();
        row.push_back(report_number(est_acc(sums)));
        report.csv.rows.push_back({"est_acc", std::to_string(result.set_sizes[k]),
                                   std::to_string(page), of, six_digits(est_acc(sums)),
                                   std::to_string(sums.count[Q::kEstAcc])});
        if (k == middle) bars.series[i].values.push_back(est_acc(sums));
      }
    }
    quest.table.rows.push_back(std::move(row));
  }
  report.tables.push_back(std::move(quest));
  Figure& figure = report.figures.emplace_back();
  figure.name = "union-quest";
  figure.title = fmt::format("Quest for each token and for the block, {}", k_text(middle));
  figure.caption = prompts_text() + ", step 1; as MAGE, Fig. 1b.";
  draw_bars(bars, figure);
}

StudyReport UnionStudy::report(const std::vector<nlohmann::json>& values) const {
  const EstimateResult result = sum(values);
  StudyReport report;
  report.csv.header = {"quantity", "k", "page", "of", "value", "n"};
  add_unions(result, report);
  add_quest(result, report);
  return report;
}

}  // namespace

std::unique_ptr<Study> make_estimators_study(const StudyInput& input) {
  return std::make_unique<EstimatorsStudy>(input);
}
std::unique_ptr<Study> make_union_study(const StudyInput& input) {
  return std::make_unique<UnionStudy>(input);
}

}  // namespace blockscope
