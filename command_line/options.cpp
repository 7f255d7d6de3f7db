#include "command_line/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <thread>

#include "decode_record/base/error.h"

namespace blockscope {
namespace {

std::string range_text(std::int64_t least, std::uint64_t most) {
  return most == kNoLimit ? fmt::format("of at least {}", least)
                          : fmt::format("from {} to {}", least, most);
}

bool is_whole(const std::string& text, std::int64_t least, std::uint64_t most) {
  const char* const end = text.data() + text.size();
  if (text.starts_with('-')) {
    std::int64_t value = 0;
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    return error == std::errc() && stop == end && value >= least;
  }
  std::uint64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end && value <= most &&
         (least <= 0 || value >= static_cast<std::uint64_t>(least));
}

std::string real_range_text(double least, double most, bool with_least) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::string from = fmt::format("{} {}", with_least ? "of at least" : "above", least);
  if (most == kInfinity) return from;
  if (least == -kInfinity) return fmt::format("of at most {}", most);
  return with_least ? fmt::format("from {} to {}", least, most)
                    : fmt::format("above {} and at most {}", least, most);
}

[[noreturn]] void refuse_empty(std::string_view what) {
  throw UsageError(fmt::format(
      "{}: expected a value, got an empty one. HINT: leave it out if nothing is meant", what));
}

}  // namespace

CLI::Validator whole_number(std::int64_t least, std::uint64_t most) {
  return CLI::Validator(
      [=](const std::string& text) {
        if (is_whole(text, least, most)) return std::string();
        return fmt::format("expected a whole number {}, got '{}'", range_text(least, most), text);
      },
      most == kNoLimit ? fmt::format(">= {}", least) : fmt::format("{}..{}", least, most));
}

CLI::Validator real_number(double least, double most, bool with_least) {
  return CLI::Validator(
      [=](const std::string& text) {
        double value = 0.0;
        const char* const end = text.data() + text.size();
        const auto [stop, error] = std::from_chars(text.data(), end, value);
        const bool inside = with_least ? value >= least : value > least;
        if (error == std::errc() && stop == end && std::isfinite(value) && inside &&
            value <= most) {
          return std::string();
        }
        return fmt::format("expected a number {}, got '{}'",
                           real_range_text(least, most, with_least), text);
      },
      "");
}

int most_threads() {
  return 4 * static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

void add_plugin_option(CLI::App& command, const std::string& what) {
  command.add_option("--plugin")
      ->description("Load " + what + " from this Python file")
      ->option_text("FILE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void refuse_empty_values(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const std::string_view before = argv[i - 1];
    if (argument.empty()) {
      const bool of_option = i > 1 && before.starts_with("-");
      refuse_empty(of_option ? std::string(before) : fmt::format("argument {}", i));
    }
    if (argument.starts_with("--") && argument.find('=') == argument.size() - 1) {
      refuse_empty(argument.substr(0, argument.size() - 1));
    }
  }
}

namespace {

constexpr const char* kUsual = "Options";  // CLI11's default title

std::vector<CLI::Option*> less_usual_options(CLI::App& command) {
  return command.get_options(
      [](const CLI::Option* option) { return option->get_group() != kUsual; });
}

/// --help of a command shows its usual options, --help-all every one.
void limit_help(CLI::App& command, int argc, const char* const* argv) {
  const std::vector<CLI::Option*> others = less_usual_options(command);
  if (others.empty()) return;
  command.set_help_all_flag("--help-all", "Print this help message with all options and exit");
  const bool asks = std::any_of(argv, argv + argc, [](std::string_view argument) {
    return argument == "--help" || argument == "-h";
  });
  if (!asks) return;  // an option with an empty group has no name in messages
  for (CLI::Option* option : others) option->group("");
  command.footer(fmt::format("{} less usual options: blockscope {} --help-all\n{}", others.size(),
                             command.get_name(), command.get_footer()));
}

}  // namespace

void less_usual(CLI::App& command, const std::string& title,
                std::initializer_list<const char*> options) {
  for (const char* option : options) command.get_option(option)->group(title);
}

void parse_arguments(CLI::App& app, int argc, const char* const* argv) {
  const std::string named = argc > 1 ? argv[1] : "";
  const auto found = app.get_subcommands([&](CLI::App* known) { return known->check_name(named); });
  CLI::App* command = found.empty() ? nullptr : found.front();
  if (command != nullptr) limit_help(*command, argc, argv);
  for (int i = 2; command != nullptr && i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--") break;
    const size_t equals = argument.find('=');
    const std::string name(argument.substr(0, equals));
    if (!name.starts_with("-") || (equals == std::string_view::npos && i + 1 == argc)) continue;
    const CLI::Option* option = command->get_option_no_throw(name);
    if (option == nullptr || option->get_delimiter() != ',') continue;
    const std::string value(equals == std::string_view::npos ? std::string_view(argv[i + 1])
                                                             : argument.substr(equals + 1));
    if (("," + value + ",").find(",,") == std::string::npos) continue;
    throw UsageError(
        fmt::format("{}: expected values separated by commas, got '{}' with an empty one. HINT: "
                    "leave out the comma, or add the value",
                    name, value));
  }
  app.parse(argc, argv);
}

std::vector<std::string> given_options(const CLI::App& command) {
  std::vector<std::string> names;
  std::vector<const CLI::App*> groups =
      command.get_subcommands([](const CLI::App*) { return true; });
  groups.push_back(&command);
  for (const CLI::App* group : groups) {
    for (const CLI::Option* option : group->get_options()) {
      if (option->count() == 0 || option->get_lnames().empty()) continue;
      names.push_back("--" + option->get_lnames().front());
    }
  }
  return names;
}

void refuse_idle(const CLI::App& command, const std::string& option, bool applies,
                 std::string_view condition) {
  if (applies || command.get_option(option)->count() == 0) return;
  throw UsageError(fmt::format("{}: does nothing without {}. HINT: add that, or leave {} out",
                               option, condition, option));
}

void refuse_idle_beside(const CLI::App& command, const std::string& option,
                        const std::string& other) {
  if (command.get_option(other)->count() == 0 || command.get_option(option)->count() == 0) return;
  throw UsageError(
      fmt::format("{}: does nothing together with {}. HINT: leave one of them out", option, other));
}

}  // namespace blockscope
