// What the machine offers, read from /proc, /sys and statvfs without loading any library. A fact
// that can't be read is empty or 0. `doctor` prints it as unknown.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "probe/checkpoint/hub_cache.h"

namespace blockscope {

struct CpuFacts {
  std::string model;                  // "AMD EPYC 9B14"
  unsigned cores = 0;                 // logical cores this process may run on
  double quota = 0;                   // cores allowed by the control group; 0 = no limit
  std::vector<std::string> features;  // those of kCpuFeatures that the CPU has
};

struct MemoryFacts {
  std::uint64_t total = 0;      // bytes, the smaller of RAM and control-group limit
  std::uint64_t available = 0;  // bytes
};

struct DiskFacts {
  std::filesystem::path path;
  std::uint64_t free = 0;   // bytes available to this user
  std::string file_system;  // "ext4", "nfs", "lustre", "tmpfs", or hexadecimal magic
  bool is_network = false;  // file locks may fail on it
  bool writable = false;
};

struct GpuFacts {
  std::string driver;              // kernel driver version; empty without one
  std::vector<std::string> names;  // one per GPU
};

struct HubFacts {
  std::filesystem::path cache;  // where model ids are looked up
  std::string source;           // the variable that set it, or "default"
  bool exists = false;
  std::vector<std::string> models;  // "org/name" of every model--org--name folder
};

/// CPU flags that the kernels or LibTorch dispatch on, in /proc/cpuinfo's spelling.
inline constexpr const char* kCpuFeatures[] = {"avx2",    "fma",         "f16c",
                                               "avx512f", "avx512_bf16", "amx_bf16"};

CpuFacts read_cpu_facts();
MemoryFacts read_memory_facts();
DiskFacts read_disk_facts(const std::filesystem::path& path);
GpuFacts read_gpu_facts();
/// Where the runtime would look for models (probe/checkpoint/hub_cache.h), and what it would find.
HubFacts read_hub_facts(const HubEnvironment& environment);

/// The value of an environment variable, or an empty string.
std::string environment_value(const char* name);

}  // namespace blockscope
