// Finds, opens and calls the modules. A module is never unloaded: LibTorch's worker threads and
// static destructors must outlive the call.
#include "cli/modules.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <system_error>
#include <vector>

#include "command_line/freed_memory.h"
#include "decode_record/base/error.h"

namespace blockscope {
namespace {

using EntryPoint = int (*)(int, char**);

// Settings that the libraries of a module read when they are loaded. A user's own settings win.
void prepare_libraries() {
  // Idle OpenMP threads of LibTorch spin for milliseconds by default. A decoding step has many
  // short parallel regions, so spinning ruins it on a busy machine (measured on two loaded cores: 1
  // against 68 tokens/s). Without any spinning each region waits until a thread wakes up (on idle
  // cores: 200 against 450 tokens/s). A thousand turns last about 20 microseconds.
  if (std::getenv("OMP_WAIT_POLICY") == nullptr) setenv("GOMP_SPINCOUNT", "1000", 0);
  keep_freed_memory();
}

// Returns the entry point, or nullptr with the loader's reason in `problem`.
EntryPoint load_entry_point(const Module& module, const std::filesystem::path& path,
                            std::string& problem) {
  prepare_libraries();
  // RTLD_GLOBAL would let a module's symbols take part in the lookups of everything loaded later.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* symbol =
      library == nullptr ? nullptr : dlsym(library, std::string(module.entry_point).c_str());
  if (symbol == nullptr) {
    const char* reason = dlerror();
    problem = reason == nullptr ? "unknown loader error" : reason;
  }
  return reinterpret_cast<EntryPoint>(symbol);
}

bool asks_for_help(int argc, char** argv) {
  return std::any_of(argv, argv + argc, [](const char* argument) {
    return std::string_view(argument) == "--help" || std::string_view(argument) == "-h";
  });
}

}  // namespace

const ModuleCommand* find_module_command(std::string_view name) {
  const auto found = std::ranges::find(kModuleCommands, name, &ModuleCommand::name);
  return found == kModuleCommands.end() ? nullptr : &*found;
}

bool names_plugin(int argc, char** argv) {
  return std::any_of(argv, argv + argc, [](std::string_view argument) {
    return argument == kPlugins.name || argument.starts_with("--plugin=");
  });
}

void run_python_command(const PythonCommand& command, int first, int argc, char** argv) {
  prepare_libraries();
  std::error_code error;
  const auto binary = std::filesystem::read_symlink("/proc/self/exe", error);
  auto python = (binary.parent_path() / "python3").string();
  if (error || !std::filesystem::exists(python, error)) python = "python3";  // of PATH
  const std::string script = fmt::format(
      "import sys\n"
      "try:\n"
      "    from {} import main\n"
      "except ImportError as error:\n"
      "    sys.exit(f'error: {}: {{sys.executable}}: {{error}}. HINT: pip install . in a clone "
      "installs the Python package')\n"
      "sys.exit(main())",
      command.module, command.name);
  std::vector<std::string> words{python, "-c", script};
  words.insert(words.end(), argv + std::min(argc, first), argv + argc);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  throw Error(fmt::format("{}: {}: {}. HINT: install the Python package: pip install .",
                          command.name, python, std::generic_category().message(errno)));
}

std::filesystem::path module_path(const Module& module) {
  if (const char* path = std::getenv(std::string(module.variable).c_str());
      path != nullptr && *path != '\0') {
    return path;
  }
  std::error_code error;
  const auto binary = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {
    return module.file;
  }
  const auto prefix = binary.parent_path().parent_path();
  // BLOCKSCOPE_PYTHON is "python3.11": pip puts the modules into the package, the binary into bin/.
#ifdef BLOCKSCOPE_PYTHON
  std::vector<std::filesystem::path> pythons{prefix / "lib" / BLOCKSCOPE_PYTHON};
  for (const auto& entry : std::filesystem::directory_iterator(prefix / "lib", error)) {
    // A wheel of the stable ABI serves newer Pythons too.
    if (entry.path().filename().string().starts_with("python3.")) pythons.push_back(entry.path());
  }
  for (const auto& python : pythons) {
    for (const char* const packages : {"site-packages", "dist-packages"}) {
      auto path = python / packages / "blockscope" / "lib" / module.file;
      if (std::filesystem::exists(path, error)) return path;
    }
  }
#endif
  return prefix / "lib" / module.file;
}

ModuleState try_module(const Module& module) {
  ModuleState state;
  state.path = module_path(module);
  std::error_code ignored;
  state.present = std::filesystem::exists(state.path, ignored);
  if (state.present) {
    const auto begin = std::chrono::steady_clock::now();
    state.loads = load_entry_point(module, state.path, state.problem) != nullptr;
    state.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  return state;
}

int run_module_command(const ModuleCommand& command, int argc, char** argv) {
  const Module& module = *command.module;
  const auto path = module_path(module);
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    if (asks_for_help(argc, argv)) {
      fmt::print(
          "{}\nUsage: blockscope {} ...\n\nThis build lacks {}, which lists the options: {}.\n",
          command.description, command.name, module.name, module.hint);
      return 0;
    }
    throw Error(fmt::format(
        "{}: this build lacks {}: expected {}, found no such file. HINT: {}; or set {} to a built "
        "{}",
        command.name, module.name, path.string(), module.hint, module.variable, module.file));
  }
  std::string problem;
  const EntryPoint run = load_entry_point(module, path, problem);
  if (run == nullptr) {
    throw Error(fmt::format("{}: can't load {} {}: {}. HINT: {}", command.name, module.name,
                            path.string(), problem, module.hint));
  }
  return run(argc, argv);
}

}  // namespace blockscope
