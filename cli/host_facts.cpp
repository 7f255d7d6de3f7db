// See host_facts.h: reads /proc, /sys and statvfs.
#include "cli/host_facts.h"

#include <fmt/format.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "decode_record/base/cores.h"

namespace blockscope {
namespace {

namespace fs = std::filesystem;

// The text after "key :" in a /proc file of "key : value" lines; empty if there is none.
std::string proc_value(const fs::path& file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos || line.compare(0, key.size(), key) != 0) {
      continue;
    }
    const auto begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

std::uint64_t meminfo_bytes(const std::string& key) {
  std::istringstream in(proc_value("/proc/meminfo", key));
  std::uint64_t kib = 0;
  in >> kib;
  return kib * 1024;
}

// "max" and a missing file both mean no limit.
std::uint64_t control_group_number(const fs::path& file) {
  std::ifstream in(file);
  std::uint64_t value = 0;
  in >> value;
  return in ? value : 0;
}

struct FileSystemName {
  std::uint32_t magic;
  const char* name;
  bool is_network;
};
// Magic numbers from linux/magic.h and the file systems' own sources.
constexpr FileSystemName kFileSystems[] = {
    {0xEF53, "ext4", false},      {0x58465342, "xfs", false},     {0x9123683E, "btrfs", false},
    {0x01021994, "tmpfs", false}, {0x794C7630, "overlay", false}, {0x2FC12FC1, "zfs", false},
    {0x6969, "nfs", true},        {0x0BD00BD0, "lustre", true},   {0x47504653, "gpfs", true},
    {0x19830326, "beegfs", true}, {0x65735546, "fuse", true},     {0xFF534D42, "cifs", true},
    {0x00C36400, "ceph", true}};

}  // namespace

std::string environment_value(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

CpuFacts read_cpu_facts() {
  CpuFacts facts;
  facts.model = proc_value("/proc/cpuinfo", "model name");
  facts.cores = cores_of_process();
  facts.quota = cores_of_control_group();
  const std::string flags = " " + proc_value("/proc/cpuinfo", "flags") + " ";
  for (const char* feature : kCpuFeatures) {
    if (flags.find(fmt::format(" {} ", feature)) != std::string::npos) {
      facts.features.emplace_back(feature);
    }
  }
  return facts;
}

MemoryFacts read_memory_facts() {
  MemoryFacts facts{meminfo_bytes("MemTotal"), meminfo_bytes("MemAvailable")};
  const auto limit = control_group_number("/sys/fs/cgroup/memory.max");
  if (limit != 0 && limit < facts.total) {
    const auto used = control_group_number("/sys/fs/cgroup/memory.current");
    facts.total = limit;
    facts.available = std::min(facts.available, limit > used ? limit - used : 0);
  }
  return facts;
}

DiskFacts read_disk_facts(const fs::path& path) {
  DiskFacts facts;
  facts.path = path;
  std::error_code ignored;
  auto existing = fs::absolute(path, ignored);
  while (!fs::exists(existing, ignored) && existing.has_relative_path()) {
    existing = existing.parent_path();
  }
  struct statfs info {};
  if (statfs(existing.c_str(), &info) == 0) {
    facts.free =
        static_cast<std::uint64_t>(info.f_bavail) * static_cast<std::uint64_t>(info.f_bsize);
    const auto magic = static_cast<std::uint32_t>(info.f_type);
    const auto* known = std::find_if(std::begin(kFileSystems), std::end(kFileSystems),
                                     [&](const FileSystemName& fs) { return fs.magic == magic; });
    facts.file_system = known == std::end(kFileSystems) ? fmt::format("{:#x}", magic) : known->name;
    facts.is_network = known != std::end(kFileSystems) && known->is_network;
  }
  facts.writable = access(existing.c_str(), W_OK) == 0;
  return facts;
}

GpuFacts read_gpu_facts() {
  GpuFacts facts;
  std::ifstream version("/proc/driver/nvidia/version");
  std::string line;
  if (std::getline(version, line)) {
    // "NVRM version: NVIDIA UNIX ... Kernel Module  580.65.06  <date>": the first dotted number.
    std::istringstream words(line);
    for (std::string word; facts.driver.empty() && words >> word;) {
      if (word.find_first_not_of("0123456789.") == std::string::npos &&
          word.find('.') != std::string::npos) {
        facts.driver = word;
      }
    }
  }
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc/driver/nvidia/gpus", error)) {
    facts.names.push_back(proc_value(entry.path() / "information", "Model"));
  }
  return facts;
}

HubFacts read_hub_facts(const HubEnvironment& environment) {
  HubFacts facts;
  facts.cache = hub_cache_directory(environment);
  facts.source = !environment.hf_hub_cache.empty()            ? "HF_HUB_CACHE"
                 : !environment.huggingface_hub_cache.empty() ? "HUGGINGFACE_HUB_CACHE"
                 : !environment.hf_home.empty()               ? "HF_HOME"
                 : !environment.xdg_cache_home.empty()        ? "XDG_CACHE_HOME"
                                                              : "default";
  std::error_code error;
  facts.exists = fs::is_directory(facts.cache, error);
  for (const auto& entry : fs::directory_iterator(facts.cache, error)) {
    const auto name = entry.path().filename().string();
    if (name.starts_with("models--")) {
      auto id = name.substr(8);
      if (const auto dashes = id.find("--"); dashes != std::string::npos) {
        id.replace(dashes, 2, "/");
      }
      facts.models.push_back(id);
    }
  }
  std::sort(facts.models.begin(), facts.models.end());
  return facts;
}

}  // namespace blockscope
