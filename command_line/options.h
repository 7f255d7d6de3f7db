// The rules by which every command reads its options: whole numbers, reals, threads, empty values,
// and options that would do nothing.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace blockscope {

/// The upper limit of numbers without a smaller one.
inline constexpr std::uint64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

inline constexpr double kAnyReal = std::numeric_limits<double>::infinity();

/// Accepts a whole number in decimal digits from `least` to `most`, both included. (CLI11 alone
/// accepts -1 for an unsigned number and wraps it around.)
CLI::Validator whole_number(std::int64_t least, std::uint64_t most = kNoLimit);

/// Accepts a finite decimal number from `least` to `most`. Without `with_least` it must be above
/// `least`.
CLI::Validator real_number(double least, double most, bool with_least = true);

/// The most threads that an option may ask for: four per core. More would only wait for each other.
int most_threads();

/// --threads, the same in every command: 0 (all cores) to most_threads().
template <typename Count>
CLI::Option* add_threads_option(CLI::App& command, Count& threads) {
  return command
      .add_option("--threads", threads, "Use this many CPU threads (0: one for each core)")
      ->check(whole_number(0, static_cast<std::uint64_t>(most_threads())))
      ->capture_default_str();
}

/// --plugin FILE: loads `what` from a Python file. Python reads it before it calls the command
/// (cli/main.cpp).
void add_plugin_option(CLI::App& command, const std::string& what);

/// Throws UsageError for an empty argument (`--csv ""`, `--csv=`): a variable that a script did not
/// set must not change the meaning of a command.
void refuse_empty_values(int argc, const char* const* argv);

/// Parses. Throws UsageError for a comma-separated list with an empty element (`--metric recall,`):
/// a name that a script lost must not go unnoticed. CLI11 drops such elements.
void parse_arguments(CLI::App& app, int argc, const char* const* argv);

/// Puts options under a title of their own. --help leaves them out; --help-all shows them.
void less_usual(CLI::App& command, const std::string& title,
                std::initializer_list<const char*> options);

/// The long names, with dashes, of all options that were given, those of groups too.
std::vector<std::string> given_options(const CLI::App& command);

/// Throws UsageError if `option` was given and `applies` is false. The message says that the option
/// does nothing without `condition` ("--sweep").
void refuse_idle(const CLI::App& command, const std::string& option, bool applies,
                 std::string_view condition);

/// Throws UsageError if both options were given, because `option` does nothing with `other`.
void refuse_idle_beside(const CLI::App& command, const std::string& option,
                        const std::string& other);

}  // namespace blockscope
