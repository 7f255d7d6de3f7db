// Which of several processes this is, and which share of a run it has. All commands use this rule.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace blockscope {

/// The largest number of ranks of a run.
inline constexpr int64_t kMostRanks = 1'000'000;

struct Ranks {
  int64_t rank = 0;
  int64_t world_size = 1;
  std::string source;   // "torchrun", "Open MPI", "Slurm", "--ranks", or "" for a single process
  std::string ignored;  // variables that look like ranks but are ignored, for a note; "": none

  bool alone() const { return world_size == 1; }
};

using LauncherVariables = std::map<std::string, std::string>;

/// --ranks, for every command that runs a model.
CLI::Option* add_ranks_option(CLI::App& command, std::string& ranks);

/// `ranks`: "none" (a single process), "R/N", or "auto", which reads the launcher's variables:
///   torchrun   RANK, WORLD_SIZE, only if LOCAL_RANK is set, which every launcher of PyTorch sets;
///   Open MPI   OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE;
///   Slurm      SLURM_PROCID, SLURM_STEP_NUM_TASKS (or SLURM_NTASKS), only inside a job step of
///              srun. In a batch script or an interactive allocation, no tasks were started.
/// Throws UsageError for another text, and for numbers that are not 0 <= rank < size <= kMostRanks.
Ranks choose_ranks(const std::string& ranks, const LauncherVariables& variables);

/// The launcher's index of this process on its node; nullopt if no launcher started it.
std::optional<int64_t> local_rank(const LauncherVariables& variables);

/// "rank 0 of 8 (Slurm): 3 of 20 prompts".
std::string share_text(const Ranks& ranks, size_t share, size_t all);

/// For commands whose result needs all prompts. Throws UsageError if this is one of several
/// processes.
void refuse_ranks(const std::string& command, const Ranks& ranks);

}  // namespace blockscope
