// What the runtime takes from environment variables, filled in by cli/ (nothing else reads them).
#pragma once

#include <cstdint>
#include <string>

#include "probe/checkpoint/hub_cache.h"

namespace blockscope {

struct Environment {
  HubEnvironment hub;
  // Several processes share a run: torchrun (RANK, WORLD_SIZE), Slurm (SLURM_PROCID, SLURM_NTASKS)
  // or Open MPI (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE).
  int64_t rank = 0;
  int64_t world_size = 1;
  std::string launcher;  // "torchrun", "slurm", "openmpi", or "" for a single process
};

}  // namespace blockscope
