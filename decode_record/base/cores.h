// How many threads can run at once.
#pragma once

#include <sched.h>

#include <algorithm>
#include <thread>

namespace blockscope {

/// The cores that this process may use: those that a scheduler or taskset left it. At least 1.
inline unsigned available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return static_cast<unsigned>(CPU_COUNT(&set));
  return std::max(1U, std::thread::hardware_concurrency());  // a machine with more than 1024 cores
}

}  // namespace blockscope
