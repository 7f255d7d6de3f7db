#include "decode_record/schema/trace_texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "decode_record/base/error.h"
#include "decode_record/json/json_document.h"
#include "decode_record/json/json_text.h"
#include "decode_record/schema/seen_keys.h"

namespace blockscope {
namespace {

using nlohmann::json;

// Our texts have five levels. Programs that print or compare a much deeper text would run out of
// stack.
constexpr std::size_t kDepth = 64;

constexpr const char* kHint =
    "HINT: the file is damaged, or was not written by Blockscope; capture again.";

/// A member that some command reads, and its type if it is present.
struct Member {
  const char* name;
  bool (*fits)(const json& value);
  const char* expected;
};

bool is_text(const json& value) { return value.is_string(); }
bool is_object(const json& value) { return value.is_object(); }
/// Null too, because JSON has no infinity.
bool is_number(const json& value) { return value.is_number() || value.is_null(); }
bool are_whole(const json& value) {
  return value.is_array() && std::ranges::all_of(value, &json::is_number_integer);
}
bool are_objects(const json& value) {
  return value.is_array() && std::ranges::all_of(value, &json::is_object);
}

constexpr const char* kText = "a text";
constexpr const char* kNumber = "a number or null";
constexpr const char* kObject = "an object";

constexpr Member kRun[] = {{"version", &is_text, kText},
                           {"command_line", &is_text, kText},
                           {"policy", &is_text, kText},
                           {"decoding", &is_text, kText},
                           {"strategy", &is_text, kText},
                           {"strategy_text", &is_text, kText},
                           {"cache", &is_text, kText},
                           {"replay", &is_text, kText},
                           {"denoising_steps", &is_number, kNumber},
                           {"most_steps", &is_number, kNumber},
                           {"threshold", &is_number, kNumber},
                           {"eb_threshold", &is_number, kNumber},
                           {"factor", &is_number, kNumber},
                           {"tau", &is_number, kNumber},
                           {"temperature", &is_number, kNumber},
                           {"stop_ids", &are_whole, "an array of whole numbers"},
                           {"imported", &is_object, kObject},
                           {"repacked", &is_object, kObject}};
constexpr Member kRepacked[] = {{"inputs", &are_objects, "an array of objects"}};
constexpr Member kInput[] = {{"file", &is_text, kText}, {"rows", &is_number, kNumber}};
constexpr Member kImported[] = {{"tool", &is_text, kText}, {"kept", &is_object, kObject}};
constexpr Member kModel[] = {{"requested", &is_text, kText},     {"imported_from", &is_text, kText},
                             {"digest", &is_text, kText},        {"model_type", &is_text, kText},
                             {"compute_dtype", &is_text, kText}, {"target", &is_object, kObject},
                             {"draft", &is_object, kObject}};

[[noreturn]] void refuse(const std::string& where, std::string_view expected,
                         std::string_view got) {
  throw CorruptTrace(fmt::format("{}: expected {}, got {}. {}", where, expected, got, kHint));
}

std::string shortened(const json& value) {
  constexpr std::size_t kMost = 60;
  const std::string text = json_text(value);
  return text.size() <= kMost ? text : fmt::format("{} ({} bytes)", value.type_name(), text.size());
}

void check(const json& object, std::span<const Member> members, const std::string& where) {
  for (const Member& member : members) {
    const auto found = object.find(member.name);
    if (found == object.end() || member.fits(*found)) continue;
    refuse(fmt::format("{}: {}", where, member.name), member.expected, shortened(*found));
  }
}

/// One of `names` must be there.
void require(const json& object, std::span<const char* const> names, const std::string& where) {
  if (std::ranges::any_of(names, [&](const char* name) { return object.contains(name); })) return;
  std::string list;
  for (const char* name : names) list += fmt::format("{}\"{}\"", list.empty() ? "" : " or ", name);
  refuse(where, fmt::format("a member {}", list), "none");
}

json parse_object(const std::string& text, const std::string& where) {
  json root;
  try {
    root = parse_document(text, where, kDepth);
  } catch (const TrajectoryError& error) {
    throw CorruptTrace(fmt::format("{}. {}", error.what(), kHint));
  }
  if (!root.is_object()) refuse(where, "a JSON object", shortened(root));
  return root;
}

void check_run(const json& run, const std::string& where) {
  constexpr const char* kRequired[] = {"version"};
  require(run, kRequired, where);
  check(run, kRun, where);
  if (run.contains("imported")) check(run["imported"], kImported, where + ": imported");
  if (!run.contains("repacked")) return;
  const json& repacked = run["repacked"];
  check(repacked, kRepacked, where + ": repacked");
  if (!repacked.contains("inputs")) return;
  for (const json& input : repacked["inputs"]) check(input, kInput, where + ": repacked.inputs");
}

void check_model(const json& model, const std::string& where) {
  constexpr const char* kRequired[] = {"requested", "imported_from"};
  require(model, kRequired, where);
  check(model, kModel, where);
  for (const char* other : {"target", "draft"}) {
    if (model.contains(other)) check(model[other], kModel, fmt::format("{}: {}", where, other));
  }
}

void check_causal_layers(const json& model, std::int64_t num_layers, const std::string& where) {
  const json::json_pointer place(kCausalLayersPlace);
  if (!model.contains(place)) return;
  const json& layers = model.at(place);
  if (layers.is_array() && std::ssize(layers) == num_layers &&
      std::ranges::all_of(layers, &json::is_boolean)) {
    return;
  }
  refuse(fmt::format("{}: {}", where, kCausalLayersPlace),
         fmt::format("a truth value for each of {} layers", num_layers), shortened(layers));
}

}  // namespace

void check_trace_texts(const TraceMeta& meta, const std::string& path) {
  const std::string where = path + ":/model/json";
  const json model = parse_object(meta.model_json, where);
  check_model(model, where);
  check_causal_layers(model, meta.num_layers, where);
  const std::string run = path + ":/run/json";
  check_run(parse_object(meta.run_json, run), run);
}

std::vector<std::string> merged_files(const TraceMeta& meta) {
  std::vector<std::string> names;
  const json run = json::parse(meta.run_json);
  const json inputs = run.value("/repacked/inputs"_json_pointer, json::array());
  for (const json& input : inputs) {
    if (input.contains("file")) names.push_back(input["file"].get<std::string>());
  }
  return names;
}

}  // namespace blockscope
