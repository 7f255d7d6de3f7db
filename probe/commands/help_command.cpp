#include "probe/commands/help_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "command_line/standard_streams.h"
#include "decode_record/base/error.h"
#include "probe/caches/cache_table.h"
#include "probe/checkpoint/family_table.h"
#include "probe/choices/choice.h"
#include "probe/policies/policy_table.h"
#include "probe/strategies/strategy_table.h"

namespace blockscope {
namespace {

/// One entry: its line in `help KIND`, and the text of `help KIND NAME`.
struct HelpEntry {
  std::string name;
  std::string meaning;  // one line
  std::string more;     // a second one; empty: none
  std::string text;
  nlohmann::ordered_json json;
};

struct HelpKind {
  std::string name;
  std::string heading;
  std::vector<HelpEntry> entries;
};

HelpEntry choice_entry(const std::string& kind, const ChoiceDescription& one) {
  nlohmann::ordered_json options = nlohmann::ordered_json::array();
  std::string names;
  for (const OptionFacts& option : one.options) {
    options.push_back({{"name", option.name},
                       {"meaning", option.meaning},
                       {"range", option.range},
                       {"default", option.initial}});
    names += (names.empty() ? "options: " : ", ") + option.name;
  }
  return {one.choice.name,
          one.choice.meaning,
          names,
          choice_help(kind, one.choice, one.options),
          {{"name", one.choice.name},
           {"meaning", one.choice.meaning},
           {"source", one.choice.source},
           {"example", one.choice.example},
           {"options", std::move(options)}}};
}

/// `name`: "policy": its option is --policy.
HelpKind choice_kind(const std::string& name, const std::string& meaning,
                     const std::vector<ChoiceDescription>& all) {
  HelpKind kind{name, fmt::format("--{} NAME,option=value,...: {}", name, meaning), {}};
  for (const ChoiceDescription& one : all) kind.entries.push_back(choice_entry(name, one));
  return kind;
}

HelpEntry family_entry(const Family& family) {
  std::string text = fmt::format("family {}: {}\n\n", family.name, family.meaning);
  nlohmann::ordered_json facts = nlohmann::ordered_json::object();
  for (const auto& [what, value] : family_facts(family)) {
    text += fmt::format("  {:<20} {}\n", what, value);
    facts[what] = value;
  }
  text += "\n";
  if (!family.example.empty()) text += fmt::format("Example: blockscope {}\n", family.example);
  text += fmt::format("Source: {}\n", family.source);
  return {family.name,
          family.meaning,
          family.refusal.empty() ? "" : "not run",
          std::move(text),
          {{"name", family.name},
           {"meaning", family.meaning},
           {"source", family.source},
           {"example", family.example},
           {"facts", std::move(facts)}}};
}

HelpKind family_kind() {
  HelpKind kind{"family", "The model families, by model_type of config.json:", {}};
  for (const Family& family : family_table()) kind.entries.push_back(family_entry(family));
  return kind;
}

std::vector<HelpKind> help_kinds() {
  return {choice_kind("policy", "how the attention to earlier blocks is obtained",
                      describe(policy_table())),
          choice_kind("intervene", "what is changed in the attention while decoding",
                      describe(intervention_table())),
          choice_kind("strategy", "which masked positions become tokens at a step",
                      describe(strategy_table())),
          choice_kind("cache", "what a pass computes, and what it takes from earlier passes",
                      describe(cache_table())),
          family_kind()};
}

void print_names(const HelpKind& kind) {
  say("{}\n\n", kind.heading);
  for (const HelpEntry& one : kind.entries) {
    say("  {:<24} {}\n", one.name, one.meaning);
    if (!one.more.empty()) say("  {:<24} {}\n", "", one.more);
  }
  say("\nExample: blockscope help {} {}\n", kind.name, kind.entries.back().name);
}

void print_help(const std::string& kind_name, const std::string& name, bool json) {
  const std::vector<HelpKind> kinds = help_kinds();
  const auto kind = std::ranges::find(kinds, kind_name, &HelpKind::name);
  if (kind == kinds.end()) {
    throw UsageError(fmt::format("help: expected {}, or a command, got '{}'",
                                 list_of(names_of(kinds)), kind_name));
  }
  const auto one = std::ranges::find(kind->entries, name, &HelpEntry::name);
  if (!name.empty() && one == kind->entries.end()) {
    throw UsageError(fmt::format("help {}: expected {}, got '{}'", kind->name,
                                 list_of(names_of(kind->entries)), name));
  }
  if (json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const HelpEntry& entry : kind->entries) {
      if (name.empty() || entry.name == name) list.push_back(entry.json);
    }
    say("{}\n", list.dump(1));
  } else if (name.empty()) {
    print_names(*kind);
  } else {
    say("{}", one->text);
  }
}

}  // namespace

void add_help_command(CLI::App& app) {
  struct Asked {
    std::string kind, name;
    bool json = false;
  };
  auto asked = std::make_shared<Asked>();
  CLI::App* command =
      app.add_subcommand("help", "Explain a policy, a strategy, a cache or a model family");
  command->footer(
      "Example: blockscope help policy quest\n"
      "`blockscope help capture` is `blockscope capture --help`.");
  command->add_option("kind", asked->kind, "policy, strategy, cache or family")->required();
  command->add_option("name", asked->name, "One of them (default: one line for each)");
  command->add_flag("--json", asked->json, "Print JSON");
  command->callback([asked] { print_help(asked->kind, asked->name, asked->json); });
}

}  // namespace blockscope
