#include "analysis/results/export_json.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "decode_record/json/json_text.h"

namespace blockscope {
namespace {

using nlohmann::ordered_json;

ordered_json value_json(double value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}

/// A coordinate without a JSON number, such as tau = inf, becomes text.
ordered_json coordinate_json(double value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(number_text(value));
}

ordered_json axis_json(const ResultAxis& axis) {
  ordered_json item = {{"name", axis.name}};
  if (!axis.index.empty() || axis.labels.empty()) {
    item["index"] = ordered_json::array();
    for (const double index : axis.index) item["index"].push_back(coordinate_json(index));
  }
  if (!axis.labels.empty()) item["labels"] = axis.labels;
  return item;
}

ordered_json array_json(const ResultArray& array) {
  ordered_json item = {
      {"name", array.name}, {"unit", array.unit}, {"description", array.description}};
  item["axes"] = ordered_json::array();
  item["shape"] = ordered_json::array();
  for (const ResultAxis& axis : array.axes) {
    item["axes"].push_back(axis_json(axis));
    item["shape"].push_back(axis.size());
  }
  item["values"] = ordered_json::array();
  for (const double value : array.values) item["values"].push_back(value_json(value));
  item["terms"] = array.terms.empty() ? ordered_json(nullptr) : ordered_json(array.terms);
  return item;
}

ordered_json metric_json(const MetricResult& result) {
  ordered_json item = {{"metric", result.metric},
                       {"title", result.title},
                       {"formula", result.formula},
                       {"source", result.source},
                       {"computed_from", result.computed_from},
                       {"left_out", ordered_json::object()}};
  for (const auto& [reason, count] : result.left_out) item["left_out"][reason] = count;
  item["arrays"] = ordered_json::array();
  for (const ResultArray& array : result.arrays) item["arrays"].push_back(array_json(array));
  return item;
}

}  // namespace

void write_json(const AnalysisDocument& document, std::ostream& out) {
  ordered_json root = {
      {"format", "blockscope-analysis"},       {"format_version", 1},
      {"program", document.program},           {"traces", document.traces},
      {"model_digest", document.model_digest}, {"selection", ordered_json::object()}};
  for (const auto& [flag, value] : document.selection) root["selection"][flag] = value;
  root["metrics"] = ordered_json::array();
  for (const MetricResult& result : document.results) {
    root["metrics"].push_back(metric_json(result));
  }
  root["unavailable"] = ordered_json::array();
  for (const UnavailableMetric& metric : document.unavailable) {
    root["unavailable"].push_back(
        {{"metric", metric.metric}, {"level", metric.level}, {"reason", metric.reason}});
  }
  out << json_text(root, 1) << '\n';
}

}  // namespace blockscope
