// Options of choices that plugins add (docs/python.md, "Your own policy"): they have no member in
// the settings, so their values lie in a map by name.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "probe/choices/choice.h"

namespace blockscope {

/// Values of a plugin's options by name.
using OwnValues = std::map<std::string, nlohmann::json>;

/// An option as a plugin states it.
struct OwnOption {
  enum class Kind : std::uint8_t { whole, real, text, on };
  std::string name;
  std::string meaning;
  Kind kind = Kind::text;
  nlohmann::json initial;  ///< null: the option must be given
};

/// "kind": whole, real, text or on. Throws UsageError.
OwnOption::Kind parse_own_kind(const std::string& text);
/// The value that a text of the command line stands for. Throws UsageError("expected ...").
nlohmann::json parse_own(OwnOption::Kind kind, const std::string& text);
std::string own_text(const nlohmann::json& value);
std::string own_range(OwnOption::Kind kind);

/// Throws UsageError for a name that could not be written on the command line. `what`: "policy".
void check_own_name(const std::string& what, const std::string& name);

/// The option as an entry of a table has it. `choice`: the plugin's name, which keeps the key in a
/// trace's settings apart from other keys.
template <typename Settings>
ChoiceOption<Settings> own_option(const OwnOption& own, OwnValues Settings::*values,
                                  const std::string& choice) {
  ChoiceOption<Settings> option;
  option.name = own.name;
  option.key = choice + "_" + own.name;
  option.meaning = own.meaning;
  option.range = own_range(own.kind);
  option.initial = own.initial.is_null() || own.kind == OwnOption::Kind::on ? std::string()
                                                                            : own_text(own.initial);
  option.set = [=, kind = own.kind](Settings& settings, const std::string& text) {
    (settings.*values)[own.name] = parse_own(kind, text);
  };
  option.text = [=](const Settings& settings) {
    const auto found = (settings.*values).find(own.name);
    return found == (settings.*values).end() ? std::string() : own_text(found->second);
  };
  option.json = [=](const Settings& settings) {
    const auto found = (settings.*values).find(own.name);
    return found == (settings.*values).end() ? nlohmann::json() : found->second;
  };
  return option;
}

}  // namespace blockscope
