// Choices that have a name on the command line: attention policies, caches, strategies. A choice
// and its options are one argument, "quest,k=16,page=4", in flags, studies, calibration files and
// Python. Each kind of choice is a table of entries. An entry binds its options to the members of
// one struct of settings, with ranges and defaults. Parsing, help, the settings of a trace and the
// comparison of a resumed run all read this table, so a new option needs no other code.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "decode_record/base/error.h"

namespace blockscope {

/// One option of a choice, without the type of the settings.
struct OptionFacts {
  std::string name;        ///< as users write it: "page"
  std::string meaning;     ///< one line: what it does, and its unit
  std::string range;       ///< range of values: "a whole number from 1"; empty: a switch
  std::string initial;     ///< default value as text; empty: none
  std::string key = name;  ///< key in a trace's settings; empty: the entry writes it itself
};

/// An option, bound to its place in the settings.
template <typename Settings>
struct ChoiceOption : OptionFacts {
  std::function<void(Settings&, const std::string&)> set;  ///< throws UsageError("expected ...")
  std::function<std::string(const Settings&)> text;        ///< its value; empty: not given
  std::function<nlohmann::json(const Settings&)> json;     ///< its value; null: not given
};

struct ChoiceFacts {
  std::string name;
  std::string meaning;  ///< one sentence
  std::string source;   ///< paper and equation, or file and function of the released code
  std::string example;  ///< "quest,k=512,page=16"
  nlohmann::json settings = nlohmann::json::object();  ///< further settings in a trace
};

template <typename Settings>
struct Choice : ChoiceFacts {
  std::vector<ChoiceOption<Settings>> options;

  bool heeds(std::string_view name_of_option) const {
    for (const auto& option : options) {
      if (option.name == name_of_option) return true;
    }
    return false;
  }
};

/// A range of numbers; `open`: without the number `least` itself.
struct NumberRange {
  double least = 0.0;
  double most = 0.0;
  bool open = false;
};

// Ranges as text, and the parsing of values. Parsing throws UsageError("expected <range>, got
// '...'").
std::string whole_range(std::uint64_t least, std::uint64_t most);
std::uint64_t parse_whole(const std::string& text, std::uint64_t least, std::uint64_t most);
std::string real_range(const NumberRange& range);
double parse_real(const std::string& text, const NumberRange& range);
std::string word_range(std::span<const std::string> words);
/// The index of the word. Empty entries of `words` are skipped.
std::size_t parse_word(const std::string& text, std::span<const std::string> words);
std::string real_text(double value);

inline constexpr std::uint64_t kAnyWhole = INT64_MAX;

namespace choice_detail {
template <typename Value>
struct Bare {
  using type = Value;
};
template <typename Value>
struct Bare<std::optional<Value>> {
  using type = Value;
};
template <typename Value>
constexpr bool kOptional = !std::is_same_v<typename Bare<Value>::type, Value>;

template <typename Value, typename Print>
std::string shown(const Value& value, const Print& print) {
  if constexpr (kOptional<Value>) {
    return value.has_value() ? print(*value) : std::string();
  } else {
    return print(value);
  }
}

template <typename Value>
nlohmann::json json_of(const Value& value) {
  if constexpr (kOptional<Value>) {
    return value.has_value() ? nlohmann::json(*value) : nlohmann::json();
  } else {
    return value;
  }
}
}  // namespace choice_detail

/// A whole number. A std::optional member has no default.
template <typename Settings, typename Value>
ChoiceOption<Settings> whole_option(const char* name, Value Settings::*member, std::uint64_t least,
                                    const char* meaning, std::uint64_t most = kAnyWhole) {
  using Number = typename choice_detail::Bare<Value>::type;
  ChoiceOption<Settings> option;
  option.name = option.key = name;
  option.meaning = meaning;
  option.range = whole_range(least, most);
  option.set = [=](Settings& settings, const std::string& text) {
    settings.*member = static_cast<Number>(parse_whole(text, least, most));
  };
  option.text = [=](const Settings& settings) {
    return choice_detail::shown(settings.*member, [](Number n) { return std::to_string(n); });
  };
  option.json = [=](const Settings& s) { return choice_detail::json_of(s.*member); };
  option.initial = option.text(Settings{});
  return option;
}

/// A real number.
template <typename Settings, typename Value>
ChoiceOption<Settings> real_option(const char* name, Value Settings::*member, NumberRange range,
                                   const char* meaning) {
  ChoiceOption<Settings> option;
  option.name = option.key = name;
  option.meaning = meaning;
  option.range = real_range(range);
  option.set = [=](Settings& settings, const std::string& text) {
    settings.*member = parse_real(text, range);
  };
  option.text = [=](const Settings& s) { return choice_detail::shown(s.*member, real_text); };
  option.json = [=](const Settings& s) { return choice_detail::json_of(s.*member); };
  option.initial = option.text(Settings{});
  return option;
}

/// One of a few words, bound to an enum whose values are the words' indices. A std::optional member
/// has no default. `others`: values of the enum that this choice does not offer.
template <typename Settings, typename Value>
ChoiceOption<Settings> word_option(
    const char* name, Value Settings::*member, const std::vector<std::string>& words,
    const char* meaning,
    const std::vector<typename choice_detail::Bare<Value>::type>& others = {}) {
  using Enum = typename choice_detail::Bare<Value>::type;
  std::vector<std::string> offered = words;
  for (const Enum other : others) offered.at(static_cast<std::size_t>(other)).clear();
  ChoiceOption<Settings> option;
  option.name = option.key = name;
  option.meaning = meaning;
  option.range = word_range(offered);
  option.set = [=](Settings& settings, const std::string& text) {
    settings.*member = static_cast<Enum>(parse_word(text, offered));
  };
  option.text = [=](const Settings& s) {
    return choice_detail::shown(
        s.*member, [&](Enum value) { return words.at(static_cast<std::size_t>(value)); });
  };
  option.json = [text = option.text](const Settings& s) {
    const std::string word = text(s);
    return word.empty() ? nlohmann::json() : nlohmann::json(word);
  };
  option.initial = option.text(Settings{});
  return option;
}

/// A switch that is on if it is named: "sparsed,k=64,per_block".
template <typename Settings>
ChoiceOption<Settings> switch_option(const char* name, bool Settings::*member,
                                     const char* meaning) {
  ChoiceOption<Settings> option;
  option.name = option.key = name;
  option.meaning = meaning;
  option.set = [=](Settings& settings, const std::string&) { settings.*member = true; };
  option.text = [=](const Settings& s) { return s.*member ? std::string("yes") : std::string(); };
  option.json = [=](const Settings& s) { return s.*member; };
  return option;
}

/// The name of a file; it cannot contain a comma. The settings leave the name out, because the
/// entry writes what the file contains.
template <typename Settings>
ChoiceOption<Settings> file_option(const char* name, std::string Settings::*member,
                                   const char* meaning) {
  ChoiceOption<Settings> option;
  option.name = name;
  option.key.clear();
  option.meaning = meaning;
  option.range = "a file";
  option.set = [=](Settings& settings, const std::string& text) { settings.*member = text; };
  option.text = [=](const Settings& s) { return s.*member; };
  option.json = [=](const Settings& s) { return s.*member; };
  return option;
}

/// The option with a default that differs from the member's.
template <typename Settings>
ChoiceOption<Settings> with_default(ChoiceOption<Settings> option, std::string initial) {
  option.initial = std::move(initial);
  return option;
}

/// "a, b or c".
std::string list_of(const std::vector<std::string>& names);

/// A choice's text, split at its commas: a name, then pairs (option, value). A switch has no value.
struct ChoiceText {
  std::string name;
  std::vector<std::pair<std::string, std::optional<std::string>>> options;
};
/// Throws UsageError for an empty part and for an option that is named twice. `kind`: "policy".
ChoiceText split_choice(std::string_view kind, std::string_view text);

/// Splits a list of choices in one text, "none,d2cache,current_k=8,dual". Every part that is one of
/// `names` begins a new choice.
std::vector<std::string> split_choices(std::string_view text,
                                       const std::vector<std::string>& names);

/// Throws the UsageError for a wrong text: "policy 'quest,x=1': <what>".
[[noreturn]] void refuse_choice(std::string_view kind, std::string_view text,
                                const std::string& what);

/// Runs a check of the options together. Its UsageError then names the choice by `text`.
template <typename Check>
void check_choice(std::string_view kind, std::string_view text, Check&& check) {
  try {
    std::forward<Check>(check)();
  } catch (const UsageError& error) {
    refuse_choice(kind, text, error.what());
  }
}

namespace choice_detail {
void set_option(std::string_view kind, std::string_view text, const OptionFacts& option,
                const std::optional<std::string>& value,
                const std::function<void(const std::string&)>& set);
std::string unknown_option(const ChoiceFacts& choice, const std::vector<std::string>& names,
                           const std::string& option);
std::string option_text(const OptionFacts& option, const std::string& value);
}  // namespace choice_detail

template <typename Table>
std::vector<std::string> names_of(const Table& table) {
  std::vector<std::string> names;
  for (const auto& entry : table) names.push_back(entry.name);
  return names;
}

/// The entry of that name. `kind`: "policy". Throws UsageError, listing the names.
template <typename Table>
const auto& entry_named(std::string_view kind, const Table& table, const std::string& name,
                        std::string_view text) {
  for (const auto& entry : table) {
    if (entry.name == name) return entry;
  }
  refuse_choice(kind, text, "expected " + list_of(names_of(table)) + ", got '" + name + "'");
}

/// Adds a plugin's entry to a table, or replaces the plugin's earlier one of that name. Throws
/// UsageError for a name that a built-in entry has.
template <typename Entry>
void add_plugin(std::string_view kind, std::vector<Entry>& table, Entry entry) {
  entry.plugin = true;
  for (Entry& other : table) {
    if (other.name != entry.name) continue;
    if (!other.plugin) {
      refuse_choice(kind, entry.name, "expected another name, because a built-in one has it");
    }
    other = std::move(entry);
    return;
  }
  table.push_back(std::move(entry));
}

/// Reads the options in `parts` into the settings; the entry's other options get their defaults.
/// Returns the entry. Messages name the choice by `text`.
template <typename Settings, typename Table>
const auto& read_choice(std::string_view kind, const Table& table, const ChoiceText& parts,
                        std::string_view text, Settings& settings) {
  const auto& entry = entry_named(kind, table, parts.name, text);
  for (const auto& option : entry.options) {
    if (!option.initial.empty()) option.set(settings, option.initial);
  }
  for (const auto& [name, value] : parts.options) {
    const ChoiceOption<Settings>* found = nullptr;
    std::vector<std::string> names;
    for (const auto& option : entry.options) {
      names.push_back(option.name);
      if (option.name == name) found = &option;
    }
    if (found == nullptr) {
      refuse_choice(kind, text, choice_detail::unknown_option(entry, names, name));
    }
    choice_detail::set_option(kind, text, *found, value,
                              [&](const std::string& t) { found->set(settings, t); });
  }
  return entry;
}
template <typename Settings, typename Table>
const auto& read_choice(std::string_view kind, const Table& table, std::string_view text,
                        Settings& settings) {
  return read_choice(kind, table, split_choice(kind, text), text, settings);
}

/// The shortest text that gives these settings. Outputs name the choice by it.
template <typename Settings>
std::string choice_text(const Choice<Settings>& choice, const Settings& settings) {
  std::string text = choice.name;
  for (const auto& option : choice.options) {
    const std::string value = option.text(settings);
    if (value != option.initial) text += "," + choice_detail::option_text(option, value);
  }
  return text;
}

/// The choice's own settings, and its options by their keys, without those that are not given.
template <typename Settings>
nlohmann::json choice_json(const Choice<Settings>& choice, const Settings& settings) {
  nlohmann::json json = choice.settings;
  for (const auto& option : choice.options) {
    if (option.key.empty()) continue;
    nlohmann::json value = option.json(settings);
    if (!value.is_null()) json[option.key] = std::move(value);
  }
  return json;
}

/// What `blockscope help KIND NAME` prints.
std::string choice_help(std::string_view kind, const ChoiceFacts& choice,
                        const std::vector<OptionFacts>& options);

/// An entry and its options without their types: for help, docs and tests.
struct ChoiceDescription {
  ChoiceFacts choice;
  std::vector<OptionFacts> options;
};
template <typename Table>
std::vector<ChoiceDescription> describe(const Table& table) {
  std::vector<ChoiceDescription> all;
  for (const auto& entry : table) {
    ChoiceDescription one{entry, {}};
    for (const auto& option : entry.options) one.options.push_back(option);
    all.push_back(std::move(one));
  }
  return all;
}

}  // namespace blockscope
