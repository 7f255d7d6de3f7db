// The texts of a comparison of two implementations: JSON, CSV, and the places in both.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "analysis/metrics/teacher_comparison.h"
#include "decode_record/json/json_text.h"

namespace blockscope {
namespace {

using nlohmann::ordered_json;

ordered_json number(double value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}

void put_place(ordered_json& item, const TeacherPlace& place) {
  const auto put = [&](const char* name, std::int64_t value) {
    item[name] = value < 0 ? ordered_json(nullptr) : ordered_json(value);
  };
  put("sequence_a", place.sequence_a);
  put("sequence_b", place.sequence_b);
  put("row_a", place.row_a);
  put("row_b", place.row_b);
  put("block", place.block);
  put("step", place.step);
  put("layer", place.layer);
  put("position", place.position);
  put("head", place.head);
  put("channel", place.channel);
}

ordered_json difference_json(const TeacherResult& result) {
  if (!result.first) return nullptr;
  ordered_json item;
  item["quantity"] = entry_of(result.quantity).name;
  put_place(item, result.first->place);
  item["a"] = number(result.first->a);
  item["b"] = number(result.first->b);
  item["relative"] = number(result.first->relative);
  if (!result.first->experts_a.empty()) {
    item["experts_a"] = result.first->experts_a;
    item["experts_b"] = result.first->experts_b;
  }
  return item;
}

ordered_json counts_json(const TeacherCounts& counts) {
  return {{"elements", counts.elements},
          {"different", counts.different},
          {"largest", number(counts.largest)},
          {"largest_relative", number(counts.largest_relative)}};
}

ordered_json gaps_json(const ExpertGaps& gaps, std::int64_t layer) {
  return {{"layer", layer},          {"tokens", gaps.tokens}, {"different", gaps.different},
          {"swapped", gaps.swapped}, {"gaps", gaps.gaps},     {"unknown", gaps.unknown}};
}

}  // namespace

std::string place_text(const TeacherPlace& place) {
  std::string text = place.sequence_a == place.sequence_b
                         ? fmt::format("sequence {}", place.sequence_a)
                         : fmt::format("sequences {} and {}", place.sequence_a, place.sequence_b);
  if (place.row_a < 0) return text;
  text += fmt::format(", block {}, step {}", place.block, place.step);
  text += place.row_a == place.row_b ? fmt::format(" (row {})", place.row_a)
                                     : fmt::format(" (rows {} and {})", place.row_a, place.row_b);
  const auto add = [&](const char* name, std::int64_t value) {
    if (value >= 0) text += fmt::format(", {} {}", name, value);
  };
  add("layer", place.layer);
  add("position", place.position);
  add("head", place.head);
  add("channel", place.channel);
  return text;
}

std::string values_text(const TeacherResult& result) {
  const TeacherDifference& first = *result.first;
  const auto share = [&] {
    return std::isnan(first.relative) ? std::string("unknown")
                                      : fmt::format("{:.3g}", first.relative);
  };
  switch (result.quantity) {
    case TeacherQuantity::expert:
      return fmt::format("{} in A, {} in B (gap {})", fmt::join(first.experts_a, ","),
                         fmt::join(first.experts_b, ","), share());
    case TeacherQuantity::token:
      return fmt::format("{} in A, {} in B (confidences differ by {})", first.a, first.b, share());
    case TeacherQuantity::router_weight:
      return fmt::format("expert {}: {:.6g} in A, {:.6g} in B ({} of the range)",
                         first.experts_a.front(), first.a, first.b, share());
    default:
      return fmt::format("{:.6g} in A, {:.6g} in B ({} of the range)", first.a, first.b, share());
  }
}

std::string teacher_json(const TeacherComparison& found) {
  ordered_json root = {{"format", "blockscope-teacher"},
                       {"format_version", 1},
                       {"a", found.path_a},
                       {"b", found.path_b},
                       {"equal", found.equal()},
                       {"tolerance", found.tolerance},
                       {"tolerance_reason", found.tolerance_reason},
                       {"sequences", found.sequences},
                       {"rows", found.rows},
                       {"recorded_rows", found.recorded_rows},
                       {"layers", found.layers},
                       {"heads", found.heads},
                       {"inputs", nullptr},
                       {"first", nullptr},
                       {"quantities", ordered_json::array()},
                       {"gap_ends", kTieGaps},
                       {"experts", ordered_json::array()},
                       {"notes", found.notes}};
  if (found.inputs) {
    root["inputs"] = ordered_json::object();
    root["inputs"]["what"] = found.inputs->what;
    put_place(root["inputs"], found.inputs->place);
  }
  if (const TeacherResult* first = found.first()) root["first"] = difference_json(*first);
  for (const TeacherResult& result : found.results) {
    const TeacherQuantityEntry& entry = entry_of(result.quantity);
    ordered_json item = {{"name", entry.name}, {"missing", nullptr}};
    if (!result.missing.empty()) {
      item["missing"] = result.missing;
    } else {
      item.update(counts_json(result.all));
      item["first"] = difference_json(result);
      item["by_layer"] = ordered_json::array();
      for (std::size_t i = 0; i < result.by_layer.size(); ++i) {
        ordered_json layer = {{"layer", found.layers[i]}};
        layer.update(counts_json(result.by_layer[i]));
        item["by_layer"].push_back(std::move(layer));
      }
    }
    root["quantities"].push_back(std::move(item));
  }
  for (std::size_t i = 0; i < found.experts.size(); ++i) {
    root["experts"].push_back(gaps_json(found.experts[i], found.layers[i]));
  }
  return json_text(root, 1) + "\n";
}

std::string teacher_csv(const TeacherComparison& found) {
  std::string text = "quantity,layer,elements,different,largest,largest_relative\n";
  const auto line = [&](const TeacherResult& result, const std::string& layer,
                        const TeacherCounts& counts) {
    text += fmt::format("{},{},{},{},{:.9g},{:.9g}\n", entry_of(result.quantity).name, layer,
                        counts.elements, counts.different, counts.largest, counts.largest_relative);
  };
  for (const TeacherResult& result : found.results) {
    if (!result.missing.empty()) continue;
    if (result.by_layer.empty()) line(result, "", result.all);
    for (std::size_t i = 0; i < result.by_layer.size(); ++i) {
      line(result, std::to_string(found.layers[i]), result.by_layer[i]);
    }
  }
  return text;
}

}  // namespace blockscope
