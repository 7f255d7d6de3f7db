#include "decode_record/base/cores.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <thread>

namespace blockscope {

unsigned cores_of_process() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return static_cast<unsigned>(CPU_COUNT(&set));
  return std::max(1U, std::thread::hardware_concurrency());  // a machine with more than 1024 cores
}

double cores_of_control_group() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");  // "max 100000" without a limit
  double quota = 0;
  double period = 0;
  return file >> quota >> period && period > 0 ? quota / period : 0.0;
}

unsigned available_cores() {
  const unsigned cores = cores_of_process();
  const double quota = cores_of_control_group();
  return quota > 0 && quota < cores ? std::max(1U, static_cast<unsigned>(std::ceil(quota))) : cores;
}

}  // namespace blockscope
