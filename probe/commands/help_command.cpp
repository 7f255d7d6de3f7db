#include "probe/commands/help_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "command_line/standard_streams.h"
#include "decode_record/base/error.h"
#include "probe/caches/cache_table.h"
#include "probe/choices/choice.h"
#include "probe/policies/policy_table.h"
#include "probe/strategies/strategy_table.h"

namespace blockscope {
namespace {

struct ChoiceKind {
  std::string name;     // "policy": its option is --policy
  std::string meaning;  // one line
  std::vector<ChoiceDescription> (*describe)();
};

const std::vector<ChoiceKind>& choice_kinds() {
  static const std::vector<ChoiceKind> kinds{
      {"policy", "how the attention to earlier blocks is obtained",
       [] { return describe(policy_table()); }},
      {"strategy", "which masked positions become tokens at a step",
       [] { return describe(strategy_table()); }},
      {"cache", "what a pass computes, and what it takes from earlier passes",
       [] { return describe(cache_table()); }}};
  return kinds;
}

nlohmann::ordered_json to_json(const ChoiceDescription& one) {
  nlohmann::ordered_json options = nlohmann::ordered_json::array();
  for (const OptionFacts& option : one.options) {
    options.push_back({{"name", option.name},
                       {"meaning", option.meaning},
                       {"range", option.range},
                       {"default", option.initial}});
  }
  return {{"name", one.choice.name},
          {"meaning", one.choice.meaning},
          {"source", one.choice.source},
          {"example", one.choice.example},
          {"options", std::move(options)}};
}

void print_names(const ChoiceKind& kind, const std::vector<ChoiceDescription>& all) {
  say("--{} NAME,option=value,...: {}\n\n", kind.name, kind.meaning);
  for (const ChoiceDescription& one : all) {
    std::string options;
    for (const OptionFacts& option : one.options) {
      options += (options.empty() ? "" : ", ") + option.name;
    }
    say("  {:<24} {}\n", one.choice.name, one.choice.meaning);
    if (!options.empty()) say("  {:<24} options: {}\n", "", options);
  }
  say("\nExample: blockscope help {} {}\n", kind.name, all.back().choice.name);
}

void print_help(const std::string& kind_name, const std::string& name, bool json) {
  std::vector<std::string> kinds;
  for (const ChoiceKind& kind : choice_kinds()) {
    kinds.push_back(kind.name);
    if (kind.name != kind_name) continue;
    std::vector<ChoiceDescription> all = kind.describe();
    if (!name.empty()) {
      std::vector<std::string> names;
      std::erase_if(all, [&](const ChoiceDescription& one) {
        names.push_back(one.choice.name);
        return one.choice.name != name;
      });
      if (all.empty()) {
        throw UsageError(
            fmt::format("help {}: expected {}, got '{}'", kind.name, list_of(names), name));
      }
    }
    if (json) {
      nlohmann::ordered_json list = nlohmann::ordered_json::array();
      for (const ChoiceDescription& one : all) list.push_back(to_json(one));
      say("{}\n", list.dump(1));
    } else if (name.empty()) {
      print_names(kind, all);
    } else {
      say("{}", choice_help(kind.name, all.front().choice, all.front().options));
    }
    return;
  }
  throw UsageError(
      fmt::format("help: expected {}, or a command, got '{}'", list_of(kinds), kind_name));
}

}  // namespace

void add_help_command(CLI::App& app) {
  struct Asked {
    std::string kind, name;
    bool json = false;
  };
  auto asked = std::make_shared<Asked>();
  CLI::App* command = app.add_subcommand("help", "Explain a policy, a strategy or a cache");
  command->footer(
      "Example: blockscope help policy quest\n"
      "`blockscope help capture` is `blockscope capture --help`.");
  command->add_option("kind", asked->kind, "policy, strategy or cache")->required();
  command->add_option("name", asked->name, "One of them (default: all, in a line each)");
  command->add_flag("--json", asked->json, "Print it as JSON");
  command->callback([asked] { print_help(asked->kind, asked->name, asked->json); });
}

}  // namespace blockscope
