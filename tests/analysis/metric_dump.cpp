// Runs metrics over traces and prints their results as JSON, for the Python oracles:
//   metric_dump METRICS TRACE... [--threads N] [--memory BYTES] [--layers 0,2] [--sequences ...]
//               [--blocks ...] [--from-summary] [--taus 2,inf] [--set-sizes 4,8]
//               [--backbone TRACE]
// METRICS: names separated by commas, query_comparison (with --backbone) or decoding_curves.
// NaN and infinities are strings.
#include <cmath>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "analysis/metrics/decoding_curves.h"
#include "analysis/metrics/metrics.h"
#include "analysis/metrics/query_comparison.h"
#include "analysis/pass/step_pass.h"

namespace blockscope {
namespace {

using nlohmann::json;

template <typename Value>
std::vector<Value> parse_list(const std::string& text) {
  std::vector<Value> values;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) {
    values.push_back(static_cast<Value>(std::stod(part)));
  }
  return values;
}

json number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

json to_json(const ResultArray& array) {
  json axes = json::array();
  for (const ResultAxis& axis : array.axes) {
    json index = json::array();
    for (const double i : axis.index) index.push_back(number(i));
    axes.push_back({{"name", axis.name}, {"index", index}, {"labels", axis.labels}});
  }
  json values = json::array();
  for (const double value : array.values) values.push_back(number(value));
  return {{"unit", array.unit}, {"axes", axes}, {"values", values}, {"terms", array.terms}};
}

json to_json(const MetricResult& result) {
  json arrays;
  for (const ResultArray& array : result.arrays) arrays[array.name] = to_json(array);
  return {{"metric", result.metric},
          {"computed_from", result.computed_from},
          {"arrays", arrays},
          {"left_out", result.left_out}};
}

struct Arguments {
  std::vector<std::string> names;
  std::vector<std::string> traces;
  PassOptions pass;
  MetricOptions metrics;
  std::string backbone;
};

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  std::map<std::string, std::string> flags;
  std::vector<std::string> plain;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--from-summary") {
      arguments.metrics.from_summary = true;
    } else if (word.starts_with("--") && i + 1 < argc) {
      flags[word] = argv[++i];
    } else {
      plain.push_back(word);
    }
  }
  if (plain.size() < 2) throw UsageError("metric_dump: expected METRICS TRACE...");
  std::stringstream stream(plain[0]);
  for (std::string part; std::getline(stream, part, ',');) arguments.names.push_back(part);
  arguments.traces.assign(plain.begin() + 1, plain.end());
  for (const auto& [flag, value] : flags) {
    if (flag == "--threads") {
      arguments.pass.threads = std::stoul(value);
    } else if (flag == "--memory") {
      arguments.pass.memory_bytes = std::stoul(value);
    } else if (flag == "--layers") {
      arguments.pass.layers = parse_list<std::int64_t>(value);
    } else if (flag == "--sequences") {
      arguments.pass.rows.sequences = parse_list<std::int64_t>(value);
    } else if (flag == "--blocks") {
      arguments.pass.rows.blocks = parse_list<std::int64_t>(value);
    } else if (flag == "--taus") {
      arguments.metrics.taus = parse_list<double>(value);
    } else if (flag == "--backbone") {
      arguments.backbone = value;
    } else if (flag == "--set-sizes") {
      arguments.metrics.set_sizes = parse_list<std::int64_t>(value);
    } else {
      throw UsageError("metric_dump: unknown flag " + flag);
    }
  }
  return arguments;
}

int run(int argc, char** argv) {
  const Arguments arguments = parse(argc, argv);
  if (arguments.names.front() == "query_comparison") {
    const TraceGroup trained(arguments.traces);
    const TraceGroup backbone({arguments.backbone});
    std::cout << to_json(
                     compare_query_statistics(trained, backbone, arguments.metrics, arguments.pass))
              << '\n';
    return 0;
  }
  if (arguments.names.front() == "decoding_curves") {
    json curves = json::array();
    for (const MetricResult& result : decoding_curves(TraceGroup(arguments.traces))) {
      curves.push_back(to_json(result));
    }
    std::cout << curves << '\n';
    return 0;
  }
  std::vector<std::unique_ptr<StepMetric>> metrics;
  for (const std::string& name : arguments.names) {
    metrics.push_back(metric_by_name(name).make(arguments.metrics));
  }
  const TraceGroup traces(arguments.traces);
  json out = json::object();
  for (const MetricResult& result : run_pass(traces, metrics, arguments.pass)) {
    out[result.metric] = to_json(result);
  }
  std::cout << out.dump() << '\n';
  return 0;
}

}  // namespace
}  // namespace blockscope

int main(int argc, char** argv) {
  try {
    return blockscope::run(argc, argv);
  } catch (const blockscope::UsageError& error) {
    std::cerr << error.what() << '\n';
    return 2;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
