// FlashBlock (seed 000), Tables 2 and 3: SparseD per block with and without the attention over
// unselected keys, by density. Free runs give the accuracy. Replays of the exact run give the L1
// distance to exact attention and the KL of the predictions.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "analysis/figures/bar_chart.h"
#include "decode_record/base/nan.h"
#include "probe/study/study.h"
#include "probe/verify/fidelity.h"

namespace blockscope {
namespace {

/// Sums over one method, or over one prompt of a method.
struct Distance {
  ErrorTotals first_layer, all_layers;
  double kl = 0.0;
  int64_t positions = 0;

  double mean_kl() const { return positions == 0 ? kNaN : kl / static_cast<double>(positions); }
};

nlohmann::json to_json(const Distance& distance) {
  const auto totals = [](const ErrorTotals& error) {
    return nlohmann::json{error.absolute, error.squared, error.reference, error.elements};
  };
  return {{"first_layer", totals(distance.first_layer)},
          {"all_layers", totals(distance.all_layers)},
          {"kl", distance.kl},
          {"positions", distance.positions}};
}

void add_json(const nlohmann::json& json, Distance& to) {
  const auto totals = [](const nlohmann::json& list) {
    ErrorTotals error;
    list.at(0).get_to(error.absolute);
    list.at(1).get_to(error.squared);
    list.at(2).get_to(error.reference);
    list.at(3).get_to(error.elements);
    return error;
  };
  to.first_layer += totals(json.at("first_layer"));
  to.all_layers += totals(json.at("all_layers"));
  to.kl += json.at("kl").get<double>();
  to.positions += json.at("positions").get<int64_t>();
}

class ResidualStudy : public PromptStudy {
 public:
  explicit ResidualStudy(const StudyInput& input) : PromptStudy(input) {
    methods_.push_back({"exact", {}, 0});
    for (const double density : input.options.densities) {
      for (const char* name : {"sparsed", "sparsed+flashblock"}) {
        PolicyOptions policy;
        policy.policy = name;
        policy.per_block = true;
        policy.density = density;
        policy.exact_layers = input.options.exact_layers;
        methods_.push_back({name, policy, 0});
      }
    }
    for (StudyMethod& named : named_methods(input.options, {}, methods_)) methods_.push_back(named);
  }

  nlohmann::json measure(size_t cell) override;
  StudyReport report(const std::vector<nlohmann::json>& values) const override;

 private:
  std::vector<std::string> labels() const;
  std::vector<TableCell> cells_of(size_t m, const std::string& task, const MethodTotals& total,
                                  const Distance& distance) const;
  Figure figure(const std::vector<Distance>& distances) const;  // by method; exact has none

  std::vector<StudyMethod> methods_;
};

nlohmann::json ResidualStudy::measure(size_t cell) {
  const ModelConfig& config = input_.model.config;
  const StudyPrompt& prompt = prompts_[cell];
  nlohmann::json json = nlohmann::json::array();
  for (const MethodRun& run :
       run_methods(input_.model, input_.tokenizer, input_.decode, prompt, methods_)) {
    json.push_back({{"run", blockscope::to_json(run)}});
  }
  const ExactReplay replay(input_.model, input_.decode, prompt);
  for (size_t m = 1; m < methods_.size(); ++m) {
    const Fidelity fidelity = replay.compare(input_.model, methods_[m].policy);
    Distance distance;
    for (size_t h = 0; h < fidelity.first_order.size(); ++h) {
      if (h < static_cast<size_t>(config.num_heads))
        distance.first_layer += fidelity.first_order[h];
      distance.all_layers += fidelity.first_order[h];
    }
    distance.positions = fidelity.kl.count;
    distance.kl = fidelity.kl.mean * static_cast<double>(fidelity.kl.count);
    json[m]["distance"] = to_json(distance);
  }
  return json;
}

std::vector<std::string> ResidualStudy::labels() const {
  std::vector<std::string> labels;
  for (const StudyMethod& method : methods_) {
    const auto& density = method.policy.density;
    labels.push_back(density ? fmt::format("{} {:g} %", method.name, 100.0 * *density)
                             : method.name);
  }
  return labels;
}

std::vector<TableCell> ResidualStudy::cells_of(size_t m, const std::string& task,
                                               const MethodTotals& total,
                                               const Distance& distance) const {
  const auto& density = methods_[m].policy.density;
  const NumberText five = [](double value) { return report_number(value, 5); };
  const NumberText four = [](double value) { return report_number(value); };
  return {{"", "method", methods_[m].name},
          {"method", "", labels()[m]},
          {"", "density", density ? fmt::format("{:g}", *density) : ""},
          {"", "task", task},
          {"", "prompts", total.prompts},
          {"", "accuracy", total.accuracy()},
          {"", "equal_to_exact", total.share_equal()},
          {"", "keys_not_read", total.saving()},
          {"L1 first layer", "l1_first_layer", distance.first_layer.l1(), five},
          {"L1 all layers", "l1", distance.all_layers.l1(), five},
          {"relative L2", "relative_l2", distance.all_layers.relative_l2(), four},
          {"KL", "kl", distance.mean_kl(), five}};
}

Figure ResidualStudy::figure(const std::vector<Distance>& distances) const {
  BarChart bars{.x_label = "density (%)", .y_label = "L1 to exact attention, all layers"};
  bars.series = {{"sparsed", {}}, {"sparsed+flashblock", {}}};
  look_like_methods(bars.series);
  double largest = 0.0;
  for (size_t m = 1; m < methods_.size(); ++m) {
    if (!methods_[m].policy.density) continue;  // of --policies
    const bool residual = methods_[m].name != "sparsed";
    if (!residual) {
      bars.groups.push_back(fmt::format("{:g}", 100.0 * methods_[m].policy.density.value_or(0.0)));
    }
    bars.series[residual ? 1 : 0].values.push_back(distances[m].all_layers.l1());
    largest = std::max(largest, distances[m].all_layers.l1());
  }
  bars.y_upper = largest > 0.0 ? 1.1 * largest : 1.0;
  Figure figure;
  figure.name = "residual";
  figure.title = "What the attention over unselected keys adds";
  figure.caption = fmt::format("{} prompts; as FlashBlock, Table 3, all layers.", prompts_.size());
  draw_bars(bars, figure);
  return figure;
}

StudyReport ResidualStudy::report(const std::vector<nlohmann::json>& values) const {
  std::vector<TaskTotals> totals(methods_.size());
  std::vector<Distance> distances(methods_.size());
  for (size_t p = 0; p < prompts_.size(); ++p) {
    for (size_t m = 0; m < methods_.size(); ++m) {
      totals[m][prompts_[p].task].add(method_run_from_json(values[p].at(m).at("run")));
      if (m > 0) add_json(values[p].at(m).at("distance"), distances[m]);
    }
  }
  StudyReport report;
  report.tables = {{"residual", "Accuracy by density of the selection, in percent",
                    fmt::format("n = {} prompts a cell. Sets per block. As FlashBlock, Table 2.",
                                totals.front().begin()->second.prompts),
                    accuracy_by_task("method", labels(), tasks_of(prompts_), totals)},
                   {"residual-error",
                    "Distance to exact attention, and of the predictions",
                    "Under replay of the exact run. L1: mean |difference| per element of the "
                    "attention output; first order (the same queries). KL: nats a masked position. "
                    "As FlashBlock, Table 3.",
                    {}}};
  for (size_t m = 0; m < methods_.size(); ++m) {
    for (const auto& task : tasks_of(prompts_)) {
      const auto cells = cells_of(m, task, totals[m].at(task), distances[m]);
      report.csv.add_csv(cells);
      if (m > 0 && task == prompts_.front().task) report.tables.back().table.add_text(cells);
    }
  }
  report.figures = {figure(distances)};
  return report;
}

}  // namespace

std::unique_ptr<Study> make_residual_study(const StudyInput& input) {
  return std::make_unique<ResidualStudy>(input);
}

}  // namespace blockscope
