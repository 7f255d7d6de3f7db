#include "probe/run/ranks.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <charconv>
#include <string_view>

#include "decode_record/base/error.h"

namespace blockscope {
namespace {

// Slurm numbers steps of srun from 0. Larger numbers are its own (batch script, interactive shell).
constexpr int64_t kLastStepOfSlurm = 0xfffffff0;

std::string value_of(const LauncherVariables& variables, const char* name) {
  const auto at = variables.find(name);
  return at == variables.end() ? "" : at->second;
}

std::optional<int64_t> whole(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

int64_t number(const LauncherVariables& variables, const char* name) {
  const std::string text = value_of(variables, name);
  if (const std::optional<int64_t> value = whole(text)) return *value;
  throw UsageError(fmt::format(
      "{}: expected a whole number from 0, got '{}'. HINT: unset it, or use --ranks none", name,
      text));
}

bool inside_step(const LauncherVariables& variables) {
  const std::optional<int64_t> step = whole(value_of(variables, "SLURM_STEP_ID"));
  return step && *step <= kLastStepOfSlurm;
}

struct Launcher {
  const char* name;
  const char* rank;
  std::array<const char*, 2> world_size;  // the first one that is set is used
  const char* local_rank;
  bool (*started)(const LauncherVariables& variables);  // whether it started this very process
  const char* unless;                                   // why its variables are ignored if not
};

// Slurm comes last: torchrun or mpirun may run inside a Slurm job.
constexpr std::array<Launcher, 3> kLaunchers{{
    {"torchrun",
     "RANK",
     {"WORLD_SIZE", "WORLD_SIZE"},
     "LOCAL_RANK",
     [](const LauncherVariables& variables) { return variables.contains("LOCAL_RANK"); },
     "no LOCAL_RANK, so no launcher set them"},
    {"Open MPI",
     "OMPI_COMM_WORLD_RANK",
     {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"},
     "OMPI_COMM_WORLD_LOCAL_RANK",
     [](const LauncherVariables&) { return true; },
     ""},
    {"Slurm",
     "SLURM_PROCID",
     {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"},
     "SLURM_LOCALID",
     inside_step,
     "no job step (srun), so Slurm started one process"},
}};

const char* size_name(const Launcher& launcher, const LauncherVariables& variables) {
  for (const char* name : launcher.world_size) {
    if (variables.contains(name)) return name;
  }
  return nullptr;
}

/// The launcher whose rank and size are set, and that started this process.
const Launcher* launcher_of(const LauncherVariables& variables) {
  for (const Launcher& launcher : kLaunchers) {
    if (variables.contains(launcher.rank) && size_name(launcher, variables) != nullptr &&
        launcher.started(variables)) {
      return &launcher;
    }
  }
  return nullptr;
}

/// A note on ranks that are set although their launcher did not start this process.
std::string ignored_ranks(const LauncherVariables& variables) {
  for (const Launcher& launcher : kLaunchers) {
    const char* size = size_name(launcher, variables);
    if (!variables.contains(launcher.rank) || size == nullptr) continue;
    if (value_of(variables, size) == "1") continue;
    return fmt::format("{}={} and {}={} are ignored: {}", launcher.rank,
                       value_of(variables, launcher.rank), size, value_of(variables, size),
                       launcher.unless);
  }
  return "";
}

void check_range(const Ranks& ranks, const std::string& where) {
  if (ranks.world_size >= 1 && ranks.world_size <= kMostRanks && ranks.rank < ranks.world_size) {
    return;
  }
  throw UsageError(
      fmt::format("{}: expected 0 <= rank < size <= {}, got rank {} of {}. HINT: --ranks none "
                  "decodes every prompt in this process",
                  where, kMostRanks, ranks.rank, ranks.world_size));
}

}  // namespace

CLI::Option* add_ranks_option(CLI::App& command, std::string& ranks) {
  return command
      .add_option(
          "--ranks", ranks,
          "Rank of this process, for its share of the prompts: auto (launcher's), none, R/N")
      ->capture_default_str();
}

Ranks choose_ranks(const std::string& ranks, const LauncherVariables& variables) {
  Ranks chosen;
  if (ranks == "none") return chosen;
  if (ranks == "auto") {
    const Launcher* launcher = launcher_of(variables);
    if (launcher == nullptr) {
      chosen.ignored = ignored_ranks(variables);
      return chosen;
    }
    const char* size = size_name(*launcher, variables);
    chosen.rank = number(variables, launcher->rank);
    chosen.world_size = number(variables, size);
    chosen.source = launcher->name;
    check_range(chosen, fmt::format("{}, {}", launcher->rank, size));
    return chosen;
  }
  const size_t slash = ranks.find('/');
  const auto part = [&](size_t from, size_t count) {
    return slash == std::string::npos ? std::nullopt : whole(ranks.substr(from, count));
  };
  const std::optional<int64_t> rank = part(0, slash);
  const std::optional<int64_t> size = part(slash + 1, std::string::npos);
  if (!rank || !size) {
    throw UsageError(fmt::format(
        "--ranks: expected none, auto or R/N (2/8: the third of eight), got '{}'", ranks));
  }
  chosen.rank = *rank;
  chosen.world_size = *size;
  chosen.source = "--ranks";
  check_range(chosen, "--ranks");
  return chosen;
}

std::optional<int64_t> local_rank(const LauncherVariables& variables) {
  const Launcher* launcher = launcher_of(variables);
  if (launcher == nullptr || !variables.contains(launcher->local_rank)) return std::nullopt;
  return number(variables, launcher->local_rank);
}

std::string share_text(const Ranks& ranks, size_t share, size_t all) {
  return fmt::format("rank {} of {} ({}): {} of {} prompts", ranks.rank, ranks.world_size,
                     ranks.source, share, all);
}

void refuse_ranks(const std::string& command, const Ranks& ranks) {
  if (ranks.alone()) return;
  throw UsageError(
      fmt::format("{}: expected one process, got rank {} of {} ({}): its result needs all prompts, "
                  "so several processes can't share them. HINT: start it once, or use --ranks none "
                  "to let every process do all of the work",
                  command, ranks.rank, ranks.world_size, ranks.source));
}

}  // namespace blockscope
