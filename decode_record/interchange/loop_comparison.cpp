#include "decode_record/interchange/loop_comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "decode_record/json/json_document.h"
#include "decode_record/json/json_node.h"

namespace blockscope {
namespace {

constexpr std::size_t kDepth = 32;
constexpr double kMost = std::numeric_limits<double>::max();

/// A PNG file as base64, which goes into a page as it is.
std::string png(const JsonNode& node) {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=";
  std::string text = node.text();
  const auto is_letter = [&](char one) { return kLetters.find(one) != std::string_view::npos; };
  if (!text.starts_with("iVBORw0KGgo") || !std::ranges::all_of(text, is_letter)) {
    node.complain("expected a PNG file as base64, got another text");
  }
  return text;
}

std::optional<double> optional_number(const JsonNode& node, const char* member) {
  if (!node.has(member) || node.member(member).is_null()) return std::nullopt;
  return node.member(member).number(0.0, kMost);
}

void read_replay(const JsonNode& replay, LoopComparison& result) {
  if (replay.is_null()) return;
  if (const JsonNode error = replay.member("first_order_approximated"); !error.is_null()) {
    result.error_reused = error.member("relative_l2").number_or_null(0.0, kMost);
  }
  if (const JsonNode steps = replay.member("first_order_by_step"); !steps.is_null()) {
    for (const JsonNode& step : steps.elements()) {
      result.by_step.push_back(
          {step.member("step").integer(1), step.member("relative_l2").number_or_null(0.0, kMost)});
    }
  }
}

void read_setting(const JsonNode& setting, LoopComparison& result) {
  result.label = setting.member("label").text();
  const JsonNode free = setting.member("free_running");
  result.policy_seconds = free.member("seconds").member("median").number(0.0, kMost);
  const JsonNode reads = free.member("reads");
  result.key_rows = reads.member("key_rows").integer(0);
  result.key_rows_read = reads.member("key_rows_read").integer(0, result.key_rows);
  result.output_difference = optional_number(setting.member("agreement"), "relative_l2");
  read_replay(setting.member("replay"), result);
  const JsonNode frames = setting.member("frames");
  if (frames.is_null()) return;
  for (const JsonNode& pair : frames.elements()) {
    result.frames.push_back({pair.member("prompt").integer(0), pair.member("frame").integer(0),
                             png(pair.member("exact")), png(pair.member("policy"))});
  }
}

}  // namespace

LoopComparison read_loop_comparison(const std::string& path) {
  const nlohmann::json json = parse_document(read_document(path), path, kDepth);
  const JsonNode root(json, path, refuse_trajectory);
  if (!root.has("format") || root.member("format").text() != "blockscope-verify" ||
      !root.has("mode") || root.member("mode").text() != "compare") {
    refuse_trajectory(fmt::format(
        "{}: expected a file that blockscope.compare(...).save() wrote, got another", path));
  }
  LoopComparison result;
  result.model = root.member("model").text();
  result.prompts = root.member("prompts").integer(1);
  result.repetitions = root.member("repetitions").integer(1);
  result.exact_seconds = root.member("reference")
                             .member("free_running")
                             .member("seconds")
                             .member("median")
                             .number(0.0, kMost);
  const JsonNode setting = root.member("settings").elements(1).front();
  read_setting(setting, result);
  const JsonNode accuracy = setting.member("accuracy");
  if (const std::int64_t count = accuracy.member("count").integer(0); count > 0) {
    result.score = {root.member("metric").text(),
                    accuracy.member("reference").number_or_null(-kMost, kMost),
                    accuracy.member("policy").number_or_null(-kMost, kMost), count};
  }
  return result;
}

}  // namespace blockscope
