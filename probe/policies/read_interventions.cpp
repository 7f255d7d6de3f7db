// Reads interventions from texts and from JSON files.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "decode_record/base/error.h"
#include "probe/policies/intervention.h"

namespace blockscope {
namespace {

/// An intervention of the command line or of a file; `text` names it in messages.
struct GivenText {
  std::string text;
  ChoiceText parts;
};

GivenText given_text(const std::string& text) { return {text, split_choice(kInterveneKind, text)}; }

bool is_switch(const std::string& what, const std::string& name) {
  for (const InterventionEntry& entry : intervention_table()) {
    if (entry.name != what) continue;
    return std::ranges::any_of(entry.options, [&](const auto& option) {
      return option.name == name && option.range.empty();
    });
  }
  return false;
}

/// Adds one option of an object in a file.
void add_option(const std::string& path, const std::string& name, const nlohmann::json& value,
                GivenText& given) {
  const auto add = [&](std::optional<std::string> option) {
    given.text += "," + name + (option ? "=" + *option : "");
    given.parts.options.emplace_back(name, std::move(option));
  };
  const auto number = [](const nlohmann::json& x) {
    return x.is_number_float() ? real_text(x.get<double>()) : x.dump();
  };
  if (value.is_boolean()) {  // a switch that is off is not named; read_choice() refuses other names
    const bool off = !value.get<bool>() && is_switch(given.parts.name, name);
    return off ? void() : add(std::nullopt);
  }
  if (value.is_number()) return add(number(value));
  if (value.is_string()) return add(value.get<std::string>());
  if (value.is_array() && std::all_of(value.begin(), value.end(),
                                      [](const auto& x) { return x.is_number_integer(); })) {
    std::string list;
    for (const nlohmann::json& x : value) list += (list.empty() ? "" : "+") + x.dump();
    if (!list.empty()) return add(std::move(list));
  }
  throw UsageError(fmt::format(
      "{}: {}: expected a number, a text, true, or a list of whole numbers, got {}", path, name,
      value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
}

std::vector<GivenText> texts_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw UsageError(
        fmt::format("--intervene: {}: can't be read. HINT: a file, or a text such as "
                    "drop_head,layers=3,heads=0-2",
                    path));
  }
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const nlohmann::json list = nlohmann::json::parse(text, nullptr, false);
  if (!list.is_array() || list.empty()) {
    throw UsageError(fmt::format(
        "{}: expected a JSON list of interventions, got {}. HINT: [{{\"what\": \"drop_head\", "
        "\"layers\": [3]}}]",
        path,
        list.is_discarded() ? "no JSON"
        : list.is_array()   ? "an empty one"
                            : list.type_name()));
  }
  std::vector<GivenText> texts;
  for (const nlohmann::json& one : list) {
    if (one.is_string()) {
      texts.push_back(given_text(one.get<std::string>()));
      continue;
    }
    if (!one.is_object() || !one.contains("what") || !one.at("what").is_string()) {
      throw UsageError(
          fmt::format("{}: entry {}: expected a text, or an object with the member \"what\"", path,
                      texts.size()));
    }
    GivenText& given = texts.emplace_back();
    given.text = given.parts.name = one.at("what").get<std::string>();
    for (const auto& [name, value] : one.items()) {
      if (name != "what") add_option(path, name, value, given);
    }
  }
  return texts;
}

}  // namespace

std::vector<Intervention> read_interventions(const std::vector<std::string>& texts) {
  std::vector<Intervention> all;
  for (const std::string& given : texts) {
    const std::vector<GivenText> choices =
        given.ends_with(".json") ? texts_of_file(given) : std::vector<GivenText>{given_text(given)};
    for (const auto& [text, parts] : choices) {
      Intervention one;
      const InterventionEntry& entry =
          read_choice(kInterveneKind, intervention_table(), parts, text, one);
      one.what = entry.name;
      check_choice(kInterveneKind, text, [&] { entry.check(one); });
      all.push_back(std::move(one));
    }
  }
  return all;
}

}  // namespace blockscope
