
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "decode_record/files/output_file.h"
#include "decode_record/interchange/reuse_file.h"

namespace blockscope {
namespace {

using nlohmann::ordered_json;

ordered_json number(double value) {
  return std::isnan(value) ? ordered_json(nullptr) : ordered_json(value);
}

ordered_json matrix_json(const HeadMatrix<double>& matrix) {
  ordered_json rows = ordered_json::array();
  for (const auto& row : matrix) {
    ordered_json values = ordered_json::array();
    for (const double value : row) values.push_back(number(value));
    rows.push_back(std::move(values));
  }
  return rows;
}

/// Files of one range don't have the axis of ranges.
template <typename T>
ordered_json ranges_json(const RangeMatrices<T>& matrices) {
  ordered_json list = ordered_json::array();
  for (const HeadMatrix<T>& matrix : matrices) {
    if constexpr (std::is_same_v<T, double>) {
      list.push_back(matrix_json(matrix));
    } else {
      list.push_back(matrix);
    }
  }
  return list.size() == 1 ? list.front() : list;
}

ordered_json step_ranges_json(const StepRanges& ranges) {
  ordered_json list = ordered_json::array();
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const bool last = i + 1 == ranges.size();
    list.push_back(
        {ranges.first[i], last ? ordered_json(nullptr) : ordered_json(ranges.first[i + 1] - 1)});
  }
  return list;
}

ordered_json point_json(const ReusePoint& point) {
  return {{"gamma", point.gamma},
          {"heads", point.heads},
          {"byte_saving", point.byte_saving},
          {"flop_saving", point.flop_saving},
          {"relative_l2_reused", number(point.relative_l2_reused)},
          {"mean_l1_reused", number(point.mean_l1_reused)},
          {"terms_reused", point.terms_reused},
          {"relative_l2", number(point.relative_l2)},
          {"mean_l1", number(point.mean_l1)},
          {"relative_l2_all_steps", number(point.relative_l2_all_steps)},
          {"terms", point.terms}};
}

ordered_json predictions_json(const ReuseFile& file) {
  ordered_json chosen = point_json(file.predicted->point);
  chosen["steps"] = file.predicted->steps;
  chosen["reusing_steps"] = file.predicted->reusing_steps;
  chosen["external_keys"] = file.predicted->external_keys;
  chosen["external_keys_read"] = file.predicted->external_keys_read;
  ordered_json curves = ordered_json::array();
  for (const ReuseCurve& curve : file.curves) {
    ordered_json points = ordered_json::array();
    for (const ReusePoint& point : curve.points) points.push_back(point_json(point));
    curves.push_back({{"tau", curve.tau}, {"points", std::move(points)}});
  }
  return {{"chosen", std::move(chosen)}, {"curves", std::move(curves)}};
}

ordered_json traces_json(const std::vector<ReuseTrace>& traces) {
  ordered_json list = ordered_json::array();
  for (const ReuseTrace& trace : traces) {
    list.push_back({{"file", trace.file},
                    {"model_digest", trace.model_digest.empty() ? ordered_json(nullptr)
                                                                : ordered_json(trace.model_digest)},
                    {"prompts", trace.prompts},
                    {"rows", trace.rows},
                    {"sequences", trace.sequences},
                    {"blocks", trace.blocks}});
  }
  return list;
}

ordered_json file_json(const ReuseFile& file) {
  ordered_json json = {{"format", "blockscope-reuse"}, {"format_version", 2}};
  ordered_json& model = json["model"];
  model = {{"layers", file.model.layers}, {"heads", file.model.heads}};
  if (file.model.kv_heads > 0) model["kv_heads"] = file.model.kv_heads;
  if (!file.model.layer_kv_heads.empty()) model["layer_kv_heads"] = file.model.layer_kv_heads;
  model["digest"] = file.model.digest;
  if (file.reuse.ranges.size() > 1) json["step_ranges"] = step_ranges_json(file.reuse.ranges);
  if (!file.gamma.empty()) {
    const bool one = std::ranges::count(file.gamma, file.gamma.front()) == std::ssize(file.gamma);
    json["gamma"] = one ? ordered_json(file.gamma.front()) : ordered_json(file.gamma);
  }
  if (file.lse_bound) json["lse_bound"] = *file.lse_bound;
  if (!file.similarity.empty()) json["reference"] = to_string(file.reference);
  if (file.tau) json["tau"] = *file.tau;
  if (file.tau) json["tau_counts"] = to_string(file.tau_counts);
  if (!file.similarity.empty()) json["granularity"] = std::string(to_string(file.granularity));
  json["reuse"] = ranges_json(file.reuse.heads);
  if (!file.pins.empty()) {
    ordered_json& pins = json["pins"] = ordered_json::array();
    for (const ReusePin& pin : file.pins) {
      pins.push_back({{"layer", pin.layer}, {"head", pin.head}, {"reuse", pin.reuse}});
    }
  }
  if (!file.statistic.empty()) json["statistic"] = file.statistic;
  if (!file.computed_from.empty()) json["computed_from"] = file.computed_from;
  if (!file.traces.empty()) json["traces"] = traces_json(file.traces);
  const auto add = [&json](const char* name, const auto& matrices) {
    if (!matrices.empty()) json[name] = ranges_json(matrices);
  };
  add("similarity", file.similarity);
  add("standard_deviation", file.standard_deviation);
  add("standard_error", file.standard_error);
  add("p5", file.p5);
  add("count", file.count);
  add("lse_drift", file.lse_drift);
  for (const RowErrors& errors : file.row_errors) {
    ordered_json by_kind = ordered_json::object();
    for (std::size_t kind = 0; kind < errors.size(); ++kind) {
      by_kind[std::string(kRowKinds[kind])] = number(errors[kind]);
    }
    json["row_errors"].push_back(std::move(by_kind));
  }
  if (file.predicted) json["predictions"] = predictions_json(file);
  return json;
}

/// One line per inner array or point, so that people can read the file and a diff shows heads.
void print(const ordered_json& json, const std::string& indent, std::string& out) {
  const bool flat = !json.is_structured() ||
                    std::none_of(json.begin(), json.end(),
                                 [](const ordered_json& item) { return item.is_structured(); });
  if (flat) {
    out += json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
    return;
  }
  out += json.is_array() ? "[" : "{";
  const char* separator = "\n";
  for (auto item = json.begin(); item != json.end(); ++item) {
    out += separator + indent + "  ";
    if (json.is_object()) out += ordered_json(item.key()).dump() + ": ";
    print(*item, indent + "  ", out);
    separator = ",\n";
  }
  out += "\n" + indent + (json.is_array() ? "]" : "}");
}

}  // namespace

std::string to_json(const ReuseFile& file) {
  std::string text;
  print(file_json(file), "", text);
  return text + "\n";
}

void write_reuse_file(OutputFile& output, const ReuseFile& file) {
  const std::string text = to_json(file);
  parse_reuse_file(text, output.path());
  output.write(text);
  output.commit();
}

void write_reuse_file(const std::string& path, const ReuseFile& file, bool force) {
  OutputFile output(path, force);
  write_reuse_file(output, file);
}

}  // namespace blockscope
