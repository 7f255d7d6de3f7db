// `blockscope diff`: compares two traces within a tolerance. Exit code 0 equal, 1 different, 2
// usage.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/App.hpp>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "command_line/options.h"
#include "command_line/printable.h"
#include "decode_record/compare_traces.h"
#include "decode_record/text.h"

namespace blockscope {
namespace {

struct DiffFlags {
  std::string first;
  std::string second;
  CompareOptions options;
  bool all = false;
};

std::string verdict(const DatasetDifference& difference) {
  if (!difference.problem.empty()) return difference.problem;
  if (difference.different == 0) {
    return difference.largest > 0.0 ? "equal within the tolerance" : "equal";
  }
  return fmt::format("{} of {} differ, first at [{}]", difference.different, difference.elements,
                     fmt::join(difference.at, ", "));
}

void print_report(const TraceDifference& report, bool all) {
  fmt::print("{:<32} {:>14} {:>14}  {}\n", "dataset", "elements", "largest |a-b|", "result");
  std::size_t same = 0;
  for (const DatasetDifference& difference : report.datasets) {
    const bool exact = difference.equal() && difference.largest == 0.0;
    if (exact) ++same;
    if (exact && !all) continue;
    fmt::print("{:<32} {:>14} {:>14.3g}  {}\n", difference.path, difference.elements,
               difference.largest, printable(verdict(difference)));
  }
  fmt::print("{} of {} datasets are exactly equal; the traces are {}\n", same,
             report.datasets.size(), report.equal ? "equal" : "different");
}

/// What was left out, or could be.
void print_aborted(const TraceDifference& report, bool ignored) {
  if (report.aborted_a == 0 && report.aborted_b == 0) return;
  const std::string count =
      fmt::format("{} of the first trace and {} of the second",
                  plural(report.aborted_a, "aborted sequence"), report.aborted_b);
  if (ignored) {
    fmt::print("{} left out\n", count);
  } else if (!report.equal) {
    fmt::print("{} compared too. HINT: --ignore-aborted leaves them out\n", count);
  }
}

void run_diff(const DiffFlags& flags) {
  const TraceDifference report = compare_traces(flags.first, flags.second, flags.options);
  print_report(report, flags.all);
  print_aborted(report, flags.options.ignore_aborted);
  if (!report.equal) throw CLI::RuntimeError(1);
}

}  // namespace

void add_diff_command(CLI::App& app) {
  auto* command = app.add_subcommand("diff", "Compare two traces; the exit code tells the result");
  auto flags = std::make_shared<DiffFlags>();
  command->add_option("a", flags->first, "First trace")->required();
  command->add_option("b", flags->second, "Second trace")->required();
  command->add_option("--tol,--atol", flags->options.absolute, "Largest |a-b| of equal floats")
      ->check(real_number(0.0, kAnyReal))
      ->capture_default_str();
  command->add_option("--rtol", flags->options.relative, "Added to it: this times |b|")
      ->check(real_number(0.0, kAnyReal))
      ->capture_default_str();
  command->add_flag("--ignore-timing", flags->options.ignore_timing,
                    "Leave out the durations of passes");
  command->add_flag("--ignore-aborted", flags->options.ignore_aborted,
                    "Leave out sequences that a kill cut and a resume decoded again: compare the "
                    "others by name and prompt, not where they lie");
  command->add_flag("--all", flags->all, "List equal datasets too");
  command->footer(
      "Tokens, steps and every other integer must be equal.\n"
      "Exit codes: 0 equal, 1 different or unreadable, 2 usage.\n"
      "Example: blockscope diff a.h5 b.h5 --tol 1e-3 --ignore-timing\n"
      "Example: blockscope diff resumed.h5 whole.h5 --ignore-timing --ignore-aborted");
  command->callback([flags] { run_diff(*flags); });
}

}  // namespace blockscope
