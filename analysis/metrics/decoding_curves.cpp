#include "analysis/metrics/decoding_curves.h"

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "analysis/metrics/decoding.h"

namespace blockscope {
namespace {

struct RunParameter {
  std::string strategy;
  std::string name;  ///< "threshold"
  double value = 0.0;
};

const std::map<std::string, std::string>& parameter_of_strategy() {
  static const std::map<std::string, std::string> names{
      {"threshold", "threshold"},
      {"low_confidence_dynamic", "threshold"},
      {"factor", "factor"},
      {"entropy_bounded", "eb_threshold"},
      {"sequential", "denoising_steps"},
      {"low_confidence_static", "denoising_steps"},
      {"prefix_ordered", "threshold"},
      {"klass", "threshold"},
      {"joint_threshold", "threshold"},
      {"joint_threshold_indel", "threshold"},
      {"pc_sampler", "denoising_steps"}};
  return names;
}

RunParameter run_parameter(const TraceReader& trace) {
  const TraceMeta& meta = trace.info().meta;
  const std::string where = trace.info().path + ":/run/json: ";
  const auto json = nlohmann::json::parse(meta.run_json, nullptr, false);
  if (!json.is_object()) throw TraceError(where + "expected a JSON object");
  const std::string replay = json.value("replay", nlohmann::json("")).is_string()
                                 ? json.value("replay", nlohmann::json("")).get<std::string>()
                                 : "";
  if (!replay.empty()) {
    throw UsageError(
        trace.info().path + ": replays " + replay +
        ", so its decisions are not its own. HINT: use traces of runs without --replay");
  }
  const auto strategy = json.find("strategy");
  if (strategy == json.end() || !strategy->is_string()) {
    throw TraceError(where + "expected a text \"strategy\", the decoding strategy");
  }
  const auto found = parameter_of_strategy().find(strategy->get<std::string>());
  if (found == parameter_of_strategy().end()) {
    throw TraceError(where + "unknown strategy \"" + strategy->get<std::string>() + "\"");
  }
  const auto value = json.find(found->second);
  if (value == json.end() || !value->is_number()) {
    throw TraceError(where + "expected a number \"" + found->second + "\", the parameter of " +
                     found->first);
  }
  // Runs of one strategy that differ in more than its parameter belong to different curves.
  const auto text = json.find("strategy_text");
  const bool told = text != json.end() && text->is_string();
  RunParameter result{told ? text->get<std::string>() : found->first, found->second,
                      value->get<double>()};
  if (result.name == "denoising_steps" && result.value == 0.0) {
    result.value = static_cast<double>(meta.block_length);
  }
  return result;
}

struct Curve {
  std::string parameter;
  std::map<double, DecodingTotals> points;
};

ResultArray over_points(const Curve& curve, const std::string& name, const std::string& unit,
                        RunningMean (DecodingTotals::*mean)() const) {
  ResultArray array{name, unit, "", {{curve.parameter, {}, {}}}, {}, {}};
  for (const auto& [value, totals] : curve.points) {
    array.axes[0].index.push_back(value);
    array.values.push_back((totals.*mean)().mean());
    array.terms.push_back((totals.*mean)().terms());
  }
  return array;
}

}  // namespace

std::vector<MetricResult> decoding_curves(const TraceGroup& traces) {
  std::map<std::string, Curve> curves;  // by strategy
  for (std::size_t t = 0; t < traces.size(); ++t) {
    const TraceReader& trace = traces.trace(t);
    const RunParameter run = run_parameter(trace);
    Curve& curve = curves[run.strategy];
    curve.parameter = run.name;
    DecodingTotals& totals = curve.points[run.value];
    const bool autoregressive = is_autoregressive(trace);
    for (const BlockSteps& block : list_blocks(trace)) totals.add(trace, block, autoregressive);
  }
  std::vector<MetricResult> results;
  for (const auto& [strategy, curve] : curves) {
    MetricResult result;
    result.metric = "decoding_curve";
    result.title = "Accuracy and speed of " + strategy;
    result.formula = "accuracy and tokens per denoising step by " + curve.parameter;
    result.source = "Fast-dLLM, threshold and factor";
    result.computed_from = "/steps, /frames, /sequences/score, /run/json";
    result.arrays = {
        over_points(curve, "tokens_per_step", "tokens", &DecodingTotals::tokens_per_step),
        over_points(curve, "accuracy", "score", &DecodingTotals::accuracy),
        over_points(curve, "steps_per_block", "steps", &DecodingTotals::steps_per_block)};
    for (const auto& [value, totals] : curve.points) {
      for (const auto& [reason, count] : totals.left_out()) result.left_out[reason] += count;
    }
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace blockscope
