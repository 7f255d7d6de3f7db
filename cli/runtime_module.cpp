// Finds, opens and calls libblockscope_probe.so. The module is never unloaded: LibTorch's worker
// threads and static destructors must outlive the call.
#include "cli/runtime_module.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "cmake/build_info/build_info.h"
#include "decode_record/error.h"

namespace blockscope {
namespace {

constexpr const char* kModuleFile = "libblockscope_probe.so";
constexpr const char* kEntryPoint = "blockscope_probe_run";
using EntryPoint = int (*)(int, char**);

// Returns the entry point, or nullptr with the loader's reason in `problem`.
EntryPoint load_entry_point(const std::filesystem::path& path, std::string& problem) {
  // Idle OpenMP threads of LibTorch spin by default. On a busy machine that is ruinous for the many
  // short parallel regions of a decoding step (measured: 1 against 68 tokens/s on two loaded
  // cores); libgomp reads the variable when it is loaded, and a user's own setting wins.
  setenv("OMP_WAIT_POLICY", "passive", /*overwrite=*/0);
  // RTLD_GLOBAL would let LibTorch's symbols take part in the lookups of everything loaded later.
  void* module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* symbol = module == nullptr ? nullptr : dlsym(module, kEntryPoint);
  if (symbol == nullptr) {
    const char* reason = dlerror();
    problem = reason == nullptr ? "unknown loader error" : reason;
  }
  return reinterpret_cast<EntryPoint>(symbol);
}

}  // namespace

bool is_runtime_command(std::string_view name) {
  return std::any_of(kRuntimeCommands.begin(), kRuntimeCommands.end(),
                     [&](const RuntimeCommand& command) { return command.name == name; });
}

std::filesystem::path runtime_module_path() {
  if (const char* path = std::getenv("BLOCKSCOPE_PROBE"); path != nullptr && *path != '\0') {
    return path;
  }
  std::error_code error;
  const auto binary = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {
    return kModuleFile;
  }
  return binary.parent_path().parent_path() / "lib" / kModuleFile;
}

RuntimeModuleState probe_runtime_module() {
  RuntimeModuleState state;
  state.path = runtime_module_path();
  std::error_code ignored;
  state.present = std::filesystem::exists(state.path, ignored);
  if (state.present) {
    const auto begin = std::chrono::steady_clock::now();
    state.loads = load_entry_point(state.path, state.problem) != nullptr;
    state.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  return state;
}

int run_runtime_command(int argc, char** argv) {
  const auto path = runtime_module_path();
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    throw Error(
        fmt::format("{}: this build lacks the runtime: expected {}, found no such file. "
                    "HINT: scripts/setup.sh fetches LibTorch {} and builds it; or set "
                    "BLOCKSCOPE_PROBE to a built {}",
                    argv[1], path.string(), build_info().torch_pin, kModuleFile));
  }
  std::string problem;
  const EntryPoint run = load_entry_point(path, problem);
  if (run == nullptr) {
    throw Error(
        fmt::format("{}: can't load the runtime {}: {}. HINT: was LibTorch moved? "
                    "scripts/setup.sh restores it and builds again",
                    argv[1], path.string(), problem));
  }
  return run(argc, argv);
}

}  // namespace blockscope
