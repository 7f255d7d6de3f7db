// One rule for all commands: which of several processes this is, and which share of a run it has.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace blockscope {

/// Most ranks that a run may have.
inline constexpr int64_t kMostRanks = 1'000'000;

struct Ranks {
  int64_t rank = 0;
  int64_t world_size = 1;
  std::string source;   // "torchrun", "Open MPI", "Slurm", "--ranks", or "" for a process alone
  std::string ignored;  // variables that look like ranks and are not, for a note; "": none

  bool alone() const { return world_size == 1; }
};

using LauncherVariables = std::map<std::string, std::string>;

/// --ranks, for every command that runs a model.
CLI::Option* add_ranks_option(CLI::App& command, std::string& ranks);

/// `ranks`: "none" (this process alone), "R/N", or "auto", which takes what a launcher says:
///   torchrun   RANK, WORLD_SIZE, where LOCAL_RANK is set too, as every launcher of PyTorch does;
///   Open MPI   OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE;
///   Slurm      SLURM_PROCID, SLURM_STEP_NUM_TASKS (or SLURM_NTASKS), inside a job step of srun. In
///              a batch script or an interactive allocation they count tasks that nobody started.
/// Throws UsageError for another text, and for numbers that are not 0 <= rank < size <= kMostRanks.
Ranks choose_ranks(const std::string& ranks, const LauncherVariables& variables);

/// Which of a node's processes this is, by the launcher; nullopt where no launcher started it.
std::optional<int64_t> local_rank(const LauncherVariables& variables);

/// "rank 0 of 8 (Slurm): 3 of 20 prompts".
std::string share_text(const Ranks& ranks, size_t share, size_t all);

/// For commands whose result is about all prompts. Throws UsageError where `ranks` says that this
/// is one of several processes.
void refuse_ranks(const std::string& command, const Ranks& ranks);

}  // namespace blockscope
