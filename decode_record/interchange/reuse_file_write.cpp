
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

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
  model["digest"] = file.model.digest;
  if (file.gamma) json["gamma"] = *file.gamma;
  if (file.tau) json["tau"] = *file.tau;
  if (file.tau) json["tau_counts"] = to_string(file.tau_counts);
  if (!file.similarity.empty()) json["granularity"] = std::string(to_string(file.granularity));
  json["reuse"] = file.reuse;
  if (!file.pins.empty()) {
    ordered_json& pins = json["pins"] = ordered_json::array();
    for (const ReusePin& pin : file.pins) {
      pins.push_back({{"layer", pin.layer}, {"head", pin.head}, {"reuse", pin.reuse}});
    }
  }
  if (!file.statistic.empty()) json["statistic"] = file.statistic;
  if (!file.computed_from.empty()) json["computed_from"] = file.computed_from;
  if (!file.traces.empty()) json["traces"] = traces_json(file.traces);
  if (!file.similarity.empty()) json["similarity"] = matrix_json(file.similarity);
  if (!file.standard_deviation.empty()) {
    json["standard_deviation"] = matrix_json(file.standard_deviation);
  }
  if (!file.standard_error.empty()) json["standard_error"] = matrix_json(file.standard_error);
  if (!file.p5.empty()) json["p5"] = matrix_json(file.p5);
  if (!file.count.empty()) json["count"] = file.count;
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
