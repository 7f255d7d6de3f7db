// `blockscope doctor`: what this build contains and this machine offers, with a verdict per line.
// Exit code 1 if a line says `fail`, that is, if decoding and recording can't work on this machine.
#include <fmt/format.h>
#include <link.h>
#include <unistd.h>

#include <CLI/App.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.h"
#include "cli/environment.h"
#include "cli/host_facts.h"
#include "cli/modules.h"
#include "cmake/build_info/build_info.h"
#include "decode_record/read/trace_inventory.h"

namespace blockscope {
namespace {

enum class Verdict { kOk, kNote, kWarn, kFail };

struct Finding {
  std::string section;
  std::string name;
  std::string value;
  Verdict verdict = Verdict::kOk;
  std::string advice = {};  // empty if nothing is to be done
};
using Findings = std::vector<Finding>;

const char* verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kNote:
      return "note";
    case Verdict::kWarn:
      return "warn";
    case Verdict::kFail:
      return "fail";
  }
  return "fail";
}

std::string gib(std::uint64_t bytes) {
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0));
}

std::string value_or(const std::string& value, const char* otherwise) {
  return value.empty() ? otherwise : value;
}

/// The folder of a library that this process has loaded; empty if there is none of that name.
std::filesystem::path folder_of_loaded(std::string_view name) {
  struct Search {
    std::string_view name;
    std::filesystem::path folder;
  } search{name, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto& wanted = *static_cast<Search*>(data);
        const std::filesystem::path file = info->dlpi_name;
        if (file.filename() != wanted.name) return 0;
        wanted.folder = file.parent_path();
        return 1;
      },
      &search);
  return search.folder;
}

/// What --device cuda loads: LibTorch's CUDA library from the folder of its CPU library, and our
/// kernels from the folder of the runtime.
void examine_cuda(Findings& out, const std::filesystem::path& runtime) {
  std::error_code ignored;
  const auto torch = folder_of_loaded("libtorch_cpu.so") / "libtorch_cuda.so";
  const bool has_torch = std::filesystem::exists(torch, ignored);
  out.push_back({"build", "LibTorch for CUDA", has_torch ? "found" : "not found",
                 has_torch ? Verdict::kOk : Verdict::kNote,
                 has_torch ? ""
                           : fmt::format("--device cuda needs it: scripts/setup.sh --cuda, or pip "
                                         "install torch=={} and LIBTORCH_ROOT (docs/cuda.md)",
                                         build_info().torch_pin)});
  const auto kernels = runtime / "libblockscope_kernels_cuda.so";
  const bool has_kernels = std::filesystem::exists(kernels, ignored);
  out.push_back({"build", "CUDA kernels", has_kernels ? "built" : "not built",
                 has_kernels ? Verdict::kOk : Verdict::kNote,
                 has_kernels ? ""
                             : "without them --device cuda runs attention with torch operators: "
                               "scripts/setup.sh --cuda"});
}

void examine_build(Findings& out) {
  const auto& build = build_info();
  out.push_back({"build", "version", fmt::format("{} ({})", build.version, build.git_describe)});
  out.push_back({"build", "compiler", fmt::format("{}, {}", build.compiler, build.build_type)});
  if (!build.sanitizers.empty()) {
    out.push_back({"build", "sanitizers", std::string(build.sanitizers), Verdict::kNote,
                   "slow: not for measurements"});
  }
  // HDF5 itself aborts if library and headers differ in the first two version numbers.
  out.push_back({"build", "HDF5",
                 fmt::format("{} (built with the headers of {})",
                             value_or(hdf5_runtime_version(), "unknown"), build.hdf5_version)});
  const auto runtime = try_module(kRuntimeModule);
  if (runtime.loads) {
    out.push_back(
        {"build", "runtime",
         fmt::format("LibTorch {}, loads in {:.2f} s", build.torch_version, runtime.seconds)});
  } else {
    out.push_back({"build", "runtime",
                   runtime.present ? "does not load: " + runtime.problem
                                   : "missing: " + runtime.path.string(),
                   Verdict::kFail,
                   fmt::format("capture, check, train, eval and bench need it: scripts/setup.sh "
                               "fetches LibTorch {} and builds it",
                               build.torch_pin)});
  }
  const auto viewer = try_module(kViewerModule);
  if (viewer.loads) {
    out.push_back({"build", "viewer", fmt::format("loads in {:.2f} s", viewer.seconds)});
  } else {
    out.push_back({"build", "viewer",
                   viewer.present ? "does not load: " + viewer.problem : std::string("not built"),
                   Verdict::kNote, fmt::format("view needs it: {}", kViewerModule.hint)});
  }
  if (runtime.loads) examine_cuda(out, runtime.path.parent_path());
}

void examine_cpu(Findings& out) {
  const auto cpu = read_cpu_facts();
  const bool limited = cpu.quota > 0 && cpu.quota < cpu.cores;
  out.push_back({"machine", "CPU", value_or(cpu.model, "unknown")});
  out.push_back({"machine", "cores",
                 limited ? fmt::format("{} (limited to {:.1f})", cpu.cores, cpu.quota)
                         : fmt::format("{}", cpu.cores),
                 limited ? Verdict::kNote : Verdict::kOk,
                 limited ? "set OMP_NUM_THREADS to the limit: more threads only wait" : ""});
  const bool fast =
      fmt::format("{}", fmt::join(cpu.features, " ")).find("avx2") != std::string::npos;
  out.push_back({"machine", "CPU features",
                 value_or(fmt::format("{}", fmt::join(cpu.features, " ")), "none of note"),
                 fast ? Verdict::kOk : Verdict::kWarn,
                 fast ? "" : "no AVX2: the portable kernels are used, and they are slower"});
}

void examine_memory_and_disk(Findings& out) {
  constexpr std::uint64_t kSmallMemory = 4ULL << 30;
  constexpr std::uint64_t kSmallDisk = 2ULL << 30;
  const auto memory = read_memory_facts();
  const bool small = memory.available < kSmallMemory;
  out.push_back({"machine", "memory",
                 fmt::format("{} free of {}", gib(memory.available), gib(memory.total)),
                 small ? Verdict::kWarn : Verdict::kOk,
                 small ? "less than 4 GiB free: choose small models and short contexts" : ""});
  const auto disk = read_disk_facts(".");
  Finding finding{"machine", "disk here",
                  fmt::format("{} free, {}", gib(disk.free), value_or(disk.file_system, "unknown")),
                  Verdict::kOk, ""};
  if (!disk.writable) {
    finding.verdict = Verdict::kWarn;
    finding.advice = "not writable: give capture an output path elsewhere (-o)";
  } else if (disk.free < kSmallDisk) {
    finding.verdict = Verdict::kWarn;
    finding.advice = "less than 2 GiB free: record fewer levels or write elsewhere (-o)";
  } else if (disk.is_network) {
    finding.verdict = Verdict::kNote;
    finding.advice = "if file locks fail here, set HDF5_USE_FILE_LOCKING=FALSE";
  }
  out.push_back(finding);
}

void examine_gpu(Findings& out) {
  const auto gpu = read_gpu_facts();
  out.push_back({"machine", "GPU",
                 gpu.names.empty() ? "none"
                                   : fmt::format("{} (driver {})", fmt::join(gpu.names, ", "),
                                                 value_or(gpu.driver, "unknown")),
                 gpu.names.empty() ? Verdict::kNote : Verdict::kOk});
}

void examine_models(Findings& out) {
  const auto hub = read_hub_facts(read_hub_environment());
  out.push_back({"models", "hub cache", fmt::format("{} ({})", hub.cache.string(), hub.source),
                 hub.exists ? Verdict::kOk : Verdict::kNote,
                 hub.exists ? "" : "no such folder: pass a checkpoint folder instead of an id"});
  if (hub.exists) {
    out.push_back({"models", "models in it",
                   value_or(fmt::format("{}", fmt::join(hub.models, " ")), "none")});
  }
}

// Variables that change what Blockscope or the libraries under it do, and what they change.
constexpr struct {
  const char* name;
  const char* effect;
} kVariables[] = {
    {"BLOCKSCOPE_PROBE", "file of the runtime module"},
    {"BLOCKSCOPE_VIEWER", "file of the viewer module"},
    {"HF_HUB_CACHE", "hub cache where model ids are looked up"},
    {"HUGGINGFACE_HUB_CACHE", "older name of HF_HUB_CACHE, which wins"},
    {"HF_HOME", "parent of the hub cache, where the two above are not set"},
    {"HF_HUB_OFFLINE", "no effect: Blockscope never downloads a model"},
    {"HDF5_USE_FILE_LOCKING", "FALSE skips HDF5's file locks (NFS, Lustre)"},
    {"HDF5_PLUGIN_PATH", "folder of HDF5 filter plugins"},
    {"CUDA_VISIBLE_DEVICES", "GPUs that this process sees"},
    {"OMP_NUM_THREADS", "threads of the CPU kernels"},
    {"NO_COLOR", "plain output"},
};

void examine_environment(Findings& out) {
  const auto tell = [&out](const auto& variables) {
    for (const auto& variable : variables) {
      const auto value = environment_value(variable.name);
      if (value.empty()) continue;
      out.push_back({"environment", variable.name, value, Verdict::kNote, variable.effect});
    }
  };
  tell(kVariables);
  tell(kLauncherVariables);
  if (out.back().section != "environment") {
    out.push_back({"environment", "variables", "none of those that Blockscope honours is set"});
  }
}

Findings examine_everything() {
  Findings findings;
  examine_build(findings);
  examine_cpu(findings);
  examine_memory_and_disk(findings);
  examine_gpu(findings);
  examine_models(findings);
  examine_environment(findings);
  return findings;
}

std::string paint(Verdict verdict, bool color) {
  const std::string padded = fmt::format("{:<4}", verdict_name(verdict));
  if (!color || verdict == Verdict::kNote) {
    return padded;
  }
  const int code = verdict == Verdict::kOk ? 32 : verdict == Verdict::kWarn ? 33 : 31;
  return fmt::format("\033[{}m{}\033[0m", code, padded);
}

void print_table(const Findings& findings) {
  const bool color = isatty(STDOUT_FILENO) == 1 && environment_value("NO_COLOR").empty() &&
                     environment_value("TERM") != "dumb";
  std::string section;
  for (const auto& finding : findings) {
    if (finding.section != section) {
      fmt::print("{}{}\n", section.empty() ? "" : "\n", finding.section);
      section = finding.section;
    }
    fmt::print("  {}  {:<22} {}\n", paint(finding.verdict, color), finding.name, finding.value);
    if (!finding.advice.empty()) {
      fmt::print("  {:<4}  {:<22} {}\n", "", "", finding.advice);
    }
  }
}

void print_json(const Findings& findings) {
  auto list = nlohmann::json::array();
  for (const auto& finding : findings) {
    list.push_back({{"section", finding.section},
                    {"name", finding.name},
                    {"value", finding.value},
                    {"verdict", verdict_name(finding.verdict)},
                    {"advice", finding.advice}});
  }
  // A path that is not UTF-8 must not make the whole report fail.
  fmt::print("{}\n", nlohmann::json{{"findings", list}}.dump(
                         2, ' ', false, nlohmann::json::error_handler_t::replace));
}

void run_doctor(bool json) {
  const auto findings = examine_everything();
  json ? print_json(findings) : print_table(findings);
  for (const auto& finding : findings) {
    if (finding.verdict == Verdict::kFail) {
      throw CLI::RuntimeError(1);
    }
  }
}

}  // namespace

void add_doctor_command(CLI::App& app) {
  auto* command = app.add_subcommand("doctor", "Tell what this machine and this build can do");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print one JSON object");
  command->footer("Example: blockscope doctor --json | python3 -m json.tool");
  command->callback([json] { run_doctor(*json); });
}

}  // namespace blockscope
