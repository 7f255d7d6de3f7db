// How every command reads its options: one rule for whole numbers, one for reals, one for threads,
// one for empty values, one for options that would do nothing.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace blockscope {

/// Most that a number can be where nothing smaller makes sense.
inline constexpr std::uint64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

inline constexpr double kAnyReal = std::numeric_limits<double>::infinity();

/// Accepts a whole number in decimal digits from `least` to `most`, both included. (CLI11 takes -1
/// for an unsigned number and turns it into another one.)
CLI::Validator whole_number(std::int64_t least, std::uint64_t most = kNoLimit);

/// Accepts a finite decimal number from `least` to `most`; without `with_least` above `least`.
CLI::Validator real_number(double least, double most, bool with_least = true);

/// Threads that an option may ask for: four for each core. More of them only wait for each other.
int most_threads();

/// --threads, the same in every command: 0 (all cores) to most_threads().
template <typename Count>
CLI::Option* add_threads_option(CLI::App& command, Count& threads) {
  return command.add_option("--threads", threads, "CPU threads (0: one for each core)")
      ->check(whole_number(0, static_cast<std::uint64_t>(most_threads())))
      ->capture_default_str();
}

/// Throws UsageError for an argument that is there and empty (`--csv ""`, `--csv=`): a variable
/// that a script did not set must not change what is meant.
void refuse_empty_values(int argc, const char* const* argv);

/// Parses. Throws UsageError for a list separated by commas with nothing before, between or after
/// them (`--metric recall,`), which CLI11 drops: a name that a script lost must not go unnoticed.
void parse_arguments(CLI::App& app, int argc, const char* const* argv);

/// Puts options under a title of their own: --help leaves them out, --help-all has all of them.
void less_usual(CLI::App& command, const std::string& title,
                std::initializer_list<const char*> options);

/// Throws UsageError when `option` was given and does nothing, because `condition` ("--sweep") does
/// not hold.
void refuse_idle(const CLI::App& command, const std::string& option, bool applies,
                 std::string_view condition);

/// The same, because `other` was given, beside which `option` does nothing.
void refuse_idle_beside(const CLI::App& command, const std::string& option,
                        const std::string& other);

}  // namespace blockscope
