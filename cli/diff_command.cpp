// `blockscope diff`: compares two traces within a tolerance, the rounds of two drafted traces by
// their position in the answer, or what two implementations computed (diff_teacher.h). Exit code 0
// equal, 1 different, 2 usage.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/App.hpp>
#include <memory>
#include <string>

#include "analysis/metrics/round_comparison.h"
#include "cli/commands.h"
#include "cli/diff_teacher.h"
#include "command_line/options.h"
#include "command_line/printable.h"
#include "decode_record/base/text.h"
#include "decode_record/compare/compare_traces.h"
#include "decode_record/interchange/imported_trajectory.h"

namespace blockscope {
namespace {

struct DiffFlags {
  std::string first;
  std::string second;
  CompareOptions options;
  bool all = false;
  bool rounds = false;
  bool teacher = false;
  TeacherFlags by_teacher;
};

constexpr std::size_t kShownSequences = 5;

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

/// Says which aborted sequences were left out, or that they could be.
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

std::string place_of(const SequenceRounds& pair) {
  const RoundPairs& rounds = pair.rounds;
  const auto number = [](std::int64_t round) {
    return round < 0 ? std::string("none") : std::to_string(round);
  };
  const std::string name =
      pair.name.empty() ? std::string() : fmt::format(" ('{}')", printable(pair.name));
  const std::string round =
      rounds.first_a == rounds.first_b
          ? number(rounds.first_a)
          : fmt::format("{} of A, {} of B", number(rounds.first_a), number(rounds.first_b));
  return fmt::format("sequence {}{}, round {}, at position {} of the answer", pair.sequences.a,
                     name, round, rounds.position);
}

/// For each sequence: the first round that differs, and how.
void print_first_rounds(const RoundsComparison& rounds, bool all) {
  std::size_t differing = 0;
  for (const SequenceRounds& pair : rounds.pairs) {
    if (pair.sequences.same_prompt && pair.rounds.same()) continue;
    if (++differing > kShownSequences && !all) continue;
    if (!pair.sequences.same_prompt) {
      fmt::print("sequence {} ('{}'): the prompts differ\n", pair.sequences.a,
                 printable(pair.name));
      continue;
    }
    fmt::print("{}: {}\n", place_of(pair), fmt::join(pair.rounds.reasons, "; "));
  }
  if (differing > kShownSequences && !all) {
    fmt::print("{} more. HINT: --all lists them\n",
               plural(static_cast<std::int64_t>(differing - kShownSequences), "sequence"));
  }
}

void print_rounds(const RoundsComparison& rounds, bool all) {
  const auto line = [](const char* name, const auto& a, const auto& b) {
    fmt::print("{:<32} {:>14} {:>14}\n", name, a, b);
  };
  const auto mean = [](const AcceptanceMean& accepted) {
    return accepted.rounds == 0 ? std::string("-") : fmt::format("{:.4f}", accepted.value());
  };
  line("rounds", "A", "B");
  line("sequences", rounds.pairs.size() + rounds.only_a.size(),
       rounds.pairs.size() + rounds.only_b.size());
  line("only in this trace", rounds.only_a.size(), rounds.only_b.size());
  line("rounds of shared sequences", rounds.rounds_a, rounds.rounds_b);
  line("mean acceptance length", mean(rounds.accepted_a), mean(rounds.accepted_b));
  print_first_rounds(rounds, all);
  fmt::print("{} at the same positions, {} of them equal; the rounds are {}\n",
             plural(rounds.lined_up, "round"), rounds.equal, rounds.same() ? "equal" : "different");
}

bool imported(const TraceMeta& meta) { return !knows_model_shape(meta); }

/// An imported trace holds rounds and nothing else, so there are no datasets to compare.
bool rounds_alone(const DiffFlags& flags, const TraceMeta& a, const TraceMeta& b) {
  return flags.rounds || (a.has_draft && b.has_draft && (imported(a) || imported(b)));
}

void run_diff(const CLI::App& command, const DiffFlags& flags) {
  for (const char* option : {"--range-tol", "--json", "--csv", "--force"}) {
    refuse_idle(command, option, flags.teacher, "--teacher");
  }
  if (flags.teacher) {
    for (const char* option :
         {"--tol", "--rtol", "--ignore-timing", "--ignore-aborted", "--rounds"}) {
      refuse_idle_beside(command, option, "--teacher");
    }
    if (!run_teacher(flags.first, flags.second, flags.by_teacher, flags.all)) {
      throw CLI::RuntimeError(1);
    }
    return;
  }
  const TraceMeta a = read_trace_meta(flags.first);
  const TraceMeta b = read_trace_meta(flags.second);
  bool equal = true;
  if (rounds_alone(flags, a, b)) {
    for (const char* option : {"--tol", "--rtol", "--ignore-timing", "--ignore-aborted"}) {
      refuse_idle(command, option, false, "datasets to compare (two captured traces, no --rounds)");
    }
  } else {
    const TraceDifference report = compare_traces(flags.first, flags.second, flags.options);
    print_report(report, flags.all);
    print_aborted(report, flags.options.ignore_aborted);
    equal = report.equal;
    if (!rounds_obstacle(a, b).empty()) {
      if (!equal) throw CLI::RuntimeError(1);
      return;
    }
  }
  const RoundsComparison rounds =
      compare_rounds(TraceReader(flags.first), TraceReader(flags.second));
  print_rounds(rounds, flags.all);
  if (!equal || !rounds.same()) throw CLI::RuntimeError(1);
}

}  // namespace

void add_diff_command(CLI::App& app) {
  auto* command = app.add_subcommand("diff", "Compare two traces; the exit code tells the result");
  auto flags = std::make_shared<DiffFlags>();
  command->add_option("a", flags->first, "First trace")->required();
  command->add_option("b", flags->second, "Second trace")->required();
  command
      ->add_option("--tol,--atol", flags->options.absolute,
                   "Treat floats as equal up to this |a-b|")
      ->check(real_number(0.0, kAnyReal))
      ->capture_default_str();
  command->add_option("--rtol", flags->options.relative, "Add this times |b| to the tolerance")
      ->check(real_number(0.0, kAnyReal))
      ->capture_default_str();
  command->add_flag("--ignore-timing", flags->options.ignore_timing,
                    "Ignore durations of passes and measured draft costs");
  command->add_flag("--ignore-aborted", flags->options.ignore_aborted,
                    "Leave out aborted sequences; match the others by name and prompt");
  command->add_flag("--rounds", flags->rounds,
                    "Compare only the rounds of drafted traces (default if one was imported)");
  command->add_flag("--all", flags->all,
                    "Also list equal datasets, every sequence that differs, and every layer");
  command->add_flag("--teacher", flags->teacher,
                    "Find where two implementations of one model first differ at the same tokens");
  add_teacher_options(*command, flags->by_teacher);
  command->footer(
      "Tokens, steps and all other integers must be equal.\n"
      "An aborted sequence was cut by a kill and decoded again by --resume.\n"
      "Rounds of drafted traces are matched by their position in the answer. Values that only\n"
      "one of the two traces has are not compared.\n"
      "--teacher needs the same tokens in both: capture one with --replay of the other. Without\n"
      "it, a replay differs from its original in /sequences/finish_reason.\n"
      "Exit codes: 0 equal, 1 different or unreadable, 2 usage.\n"
      "Example: blockscope diff a.h5 b.h5 --tol 1e-3 --ignore-timing\n"
      "Example: blockscope diff resumed.h5 whole.h5 --ignore-timing --ignore-aborted\n"
      "Example: blockscope diff ours.h5 engine.h5 --rounds\n"
      "Example: blockscope diff ours.h5 engine.h5 --teacher");
  command->callback([flags, command] { run_diff(*command, *flags); });
}

}  // namespace blockscope
