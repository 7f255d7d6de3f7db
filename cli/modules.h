// Commands that live outside the binary, in modules. A module is opened with dlopen when one of its
// commands is called: LibTorch takes about half a second to load, and a machine without a display
// may lack the libraries that a window needs.
//
// A module's one entry point is
//   extern "C" int <entry_point>(int argc, char** argv);
// with argv[0] = "blockscope" and argv[1] = the command. It parses its own flags, prints its own
// errors and returns the exit code. So `blockscope capture --help` loads the module.
#pragma once

#include <array>
#include <filesystem>
#include <string>
#include <string_view>

namespace blockscope {

struct Module {
  std::string_view name;  ///< for people, "the runtime"
  std::string_view file;  ///< in ../lib, from the folder of the binary
  std::string_view entry_point;
  std::string_view variable;  ///< environment variable that names another file
  std::string_view hint;      ///< how a build gets it
};
inline constexpr Module kRuntimeModule{
    "the runtime", "libblockscope_probe.so", "blockscope_probe_run", "BLOCKSCOPE_PROBE",
    "pip install . in an environment with torch builds it, and so does "
    "scripts/setup.sh"};
inline constexpr Module kViewerModule{
    "the viewer", "libblockscope_viewer.so", "blockscope_viewer_run", "BLOCKSCOPE_VIEWER",
    "pip install . builds it, and so does scripts/setup.sh --viewer"};

struct ModuleCommand {
  std::string_view name;
  std::string_view description;
  const Module* module;
};

inline constexpr std::array<ModuleCommand, 11> kModuleCommands{{
    {"capture", "Decode prompts with a checkpoint and record a trace", &kRuntimeModule},
    {"check", "Compare our logits with logits saved by another implementation", &kRuntimeModule},
    {"train", "Train a small block-diffusion model from scratch", &kRuntimeModule},
    {"eval", "Score a checkpoint on generated tasks", &kRuntimeModule},
    {"study", "Make a table or figure of the papers", &kRuntimeModule},
    {"verify", "Measure what an attention policy or a draft saves and costs", &kRuntimeModule},
    {"frequencies", "Count a vocabulary's tokens in texts, for pc_sampler", &kRuntimeModule},
    {"lens", "Show from which layer on the hidden states predict the final token", &kRuntimeModule},
    {"help", "Explain a policy, a strategy, a cache or a model family", &kRuntimeModule},
    {"bench", "Time decoding and recording on this machine", &kRuntimeModule},
    {"view", "Look at traces in a window, or make pictures of them", &kViewerModule},
}};

/// A command of the Python package: main() of `module`, in the environment of this binary.
struct PythonCommand {
  std::string_view name;
  std::string_view description;
  std::string_view module;
};
inline constexpr PythonCommand kBuildOps{
    "build-ops", "Compile the operators' library for the torch of this Python environment",
    "blockscope.build_ops"};

/// A command with plugins runs inside Python, which loads them first.
inline constexpr PythonCommand kPlugins{"--plugin", "Run a command with plugins",
                                        "blockscope._run_command"};
/// Whether the arguments have --plugin.
bool names_plugin(int argc, char** argv);

/// Replaces this process by the command, which gets the words from argv[first] on. Returns only by
/// throwing Error if there is no Python.
[[noreturn]] void run_python_command(const PythonCommand& command, int first, int argc,
                                     char** argv);

/// nullptr when no module has a command of this name.
const ModuleCommand* find_module_command(std::string_view name);

/// The file of a module: its variable if set, else ../lib from the binary's folder. In a Python
/// environment: the package's lib/.
std::filesystem::path module_path(const Module& module);

/// Result of loading a module without running anything.
struct ModuleState {
  std::filesystem::path path;
  bool present = false;  // the file exists
  bool loads = false;    // it loads and has the entry point
  std::string problem;   // why it does not load; empty if it loads
  double seconds = 0;    // time that loading took
};
ModuleState try_module(const Module& module);

/// Loads the command's module and passes it the whole command line. Throws Error if the module
/// can't be loaded.
int run_module_command(const ModuleCommand& command, int argc, char** argv);

}  // namespace blockscope
