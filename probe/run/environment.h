// What the runtime takes from environment variables. Only cli/ reads the variables.
#pragma once

#include <map>
#include <string>

#include "probe/checkpoint/hub_cache.h"

namespace blockscope {

/// The variables that launchers of several processes set. choose_ranks() and local_rank()
/// (probe/run/ranks.h) read them; `blockscope doctor` shows them.
struct LauncherVariable {
  const char* name;
  const char* effect;
};
inline constexpr LauncherVariable kLauncherVariables[] = {
    {"RANK", "rank given by torchrun"},
    {"WORLD_SIZE", "number of ranks given by torchrun"},
    {"LOCAL_RANK", "torchrun's GPU on this node; if unset, RANK and WORLD_SIZE are ignored"},
    {"OMPI_COMM_WORLD_RANK", "rank given by Open MPI"},
    {"OMPI_COMM_WORLD_SIZE", "number of ranks given by Open MPI"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "Open MPI's GPU on this node"},
    {"SLURM_STEP_ID", "job step of Slurm; Slurm's ranks count only inside a job step"},
    {"SLURM_PROCID", "rank given by Slurm"},
    {"SLURM_NTASKS", "number of tasks of the job or the step"},
    {"SLURM_STEP_NUM_TASKS", "number of ranks given by Slurm"},
    {"SLURM_LOCALID", "Slurm's GPU on this node"},
};

struct Environment {
  HubEnvironment hub;
  std::map<std::string, std::string> launcher;  // kLauncherVariables that are set and not empty
};

}  // namespace blockscope
