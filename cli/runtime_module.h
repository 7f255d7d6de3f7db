// The runtime commands (capture, check, train, eval, verify, bench) need LibTorch, which takes about half
// a second to load. They live in libblockscope_probe.so, opened with dlopen when one is called.
//
// The module's one entry point is
//   extern "C" int blockscope_probe_run(int argc, char** argv);
// with argv[0] = "blockscope" and argv[1] = the command. It parses its own flags (so
// `blockscope capture --help` loads it), prints its own errors and returns the exit code.
#pragma once

#include <array>
#include <filesystem>
#include <string>
#include <string_view>

namespace blockscope {

struct RuntimeCommand {
  std::string_view name;
  std::string_view description;
};

inline constexpr std::array<RuntimeCommand, 6> kRuntimeCommands{{
    {"capture", "Decode prompts with a checkpoint and record a trace"},
    {"check", "Compare our logits with logits saved by another implementation"},
    {"train", "Train a small block-diffusion model from scratch"},
    {"eval", "Score a checkpoint on generated tasks"},
    {"verify", "Measure what a calibration file saves and what it costs"},
    {"bench", "Time decoding, recording and the kernels"},
}};

/// True for a name in kRuntimeCommands.
bool is_runtime_command(std::string_view name);

/// Where the module is looked for: $BLOCKSCOPE_PROBE if set, else ../lib beside the binary.
std::filesystem::path runtime_module_path();

/// Result of loading the module without running anything.
struct RuntimeModuleState {
  std::filesystem::path path;
  bool present = false;  // the file exists
  bool loads = false;    // it loads and has the entry point
  std::string problem;   // why it does not; empty otherwise
  double seconds = 0;    // time that loading took
};
RuntimeModuleState probe_runtime_module();

/// Loads the module and hands the whole command line over; throws Error if it can't be loaded.
int run_runtime_command(int argc, char** argv);

}  // namespace blockscope
