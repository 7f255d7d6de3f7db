// The extension module `blockscope._runtime`: the commands that run models, inside a process of
// Python. It links libblockscope_probe.so, so a command here is the command of the shell.
#include <ATen/Parallel.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cli/environment.h"
#include "cli/probe_module.h"
#include "command_line/freed_memory.h"
#include "command_line/host.h"
#include "command_line/interrupt.h"
#include "decode_record/base/error.h"
#include "decode_record/hdf5/library_lock.h"
#include "probe/run/held_models.h"
#include "python/arguments.h"
#include "python/python_errors.h"
#include "python/runtime/plugin_error.h"
#include "python/runtime/policy_step.h"
#include "python/runtime/python_cache.h"
#include "python/runtime/python_policy.h"
#include "python/runtime/python_strategy.h"

namespace blockscope::python {
namespace {

namespace nb = nanobind;

/// Shows what a command prints, and its progress, through functions of Python. They are called
/// without Python's lock, on the thread that runs the command.
class PythonHost {
 public:
  /// `note(text)` and `progress(share, text)`.
  PythonHost(nb::object note, nb::object progress)
      : note_(std::move(note)), progress_(std::move(progress)) {
    host_.say = [this](const std::string& text) { said_ += text; };
    host_.note = [this](const std::string& text) { guarded([&] { note_(text_of(text)); }); };
    host_.progress = [this](double done, const std::string& text) {
      guarded([&] { progress_(done, text_of(text)); });
    };
    host_.stops = [this] { return stops(); };
  }

  CommandHost& host() { return host_; }
  const std::string& said() const { return said_; }
  /// Whether Ctrl-C stopped the command. Call it with Python's lock.
  bool interrupted() const { return error_ && error_->matches(PyExc_KeyboardInterrupt); }
  /// Throws the exception of Python that stopped the command, if one did. Call it with Python's
  /// lock.
  void rethrow() {
    if (error_) throw nb::python_error(std::move(*error_));
  }

 private:
  using Clock = std::chrono::steady_clock;

  static nb::object text_of(const std::string& text) {
    return nb::steal<nb::object>(PyUnicode_DecodeUTF8(
        text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
  }

  template <typename Work>
  void guarded(Work&& work) {
    if (error_) return;
    const nb::gil_scoped_acquire gil;
    try {
      work();
    } catch (nb::python_error& error) {
      error_.emplace(std::move(error));
    }
  }

  /// Python's own handler noted the signal; it is asked at most ten times a second.
  bool stops() {
    if (error_) return true;
    const Clock::time_point now = Clock::now();
    if (now - asked_ < std::chrono::milliseconds(100)) return false;
    asked_ = now;
    guarded([] {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    });
    return error_.has_value();
  }

  nb::object note_, progress_;
  CommandHost host_;
  std::string said_;
  std::optional<nb::python_error> error_;
  Clock::time_point asked_ = Clock::now();
};

/// Restores the number of threads of torch, which --threads changes for the whole process.
class ThreadsScope {
 public:
  ThreadsScope() : before_(at::get_num_threads()) {}
  ~ThreadsScope() {
    if (at::get_num_threads() != before_) at::set_num_threads(before_);
  }
  ThreadsScope(const ThreadsScope&) = delete;
  ThreadsScope& operator=(const ThreadsScope&) = delete;

 private:
  int before_;
};

/// Runs `work` as a hosted command. Returns what it printed as its result.
template <typename Work>
nb::bytes hosted(nb::object note, nb::object progress, Work&& work) {
  PythonHost host(std::move(note), std::move(progress));
  try {
    const nb::gil_scoped_release release;
    const HostScope scope(host.host());
    const ThreadsScope threads;
    work();
  } catch (const InterruptedError&) {
    if (!host.interrupted()) host.rethrow();
    throw;  // its message says what became of the work
  } catch (...) {
    host.rethrow();
    throw;
  }
  host.rethrow();
  return nb::bytes(host.said().data(), host.said().size());
}

nb::bytes run_command(const std::vector<nb::bytes>& words, const std::string& description,
                      nb::object note, nb::object progress) {
  Arguments arguments(words);
  return hosted(std::move(note), std::move(progress),
                [&] { run_hosted_command(arguments.count(), arguments.values(), description); });
}

std::shared_ptr<const LoadedModel> open_model(const std::vector<nb::bytes>& words,
                                              nb::object note) {
  Arguments arguments(words);
  std::shared_ptr<const LoadedModel> model;
  hosted(std::move(note), nb::none(), [&] {
    ModelFlags flags;
    CLI::App app{"", "Model"};
    flags.shares_prompts = true;
    add_model_flags(app, flags);
    run_reported(app, arguments.count(), arguments.values(),
                 [&] { model = hold_model(flags, read_environment()); });
  });
  return model;
}

nb::list options_of(const std::string& command) {
  nb::list result;
  for (const HostedOption& option : hosted_options(command)) {
    nb::dict item;
    item["name"] = option.name;
    item["help"] = option.help;
    item["takes_value"] = option.takes_value;
    item["repeats"] = option.repeats;
    item["lists"] = option.lists;
    item["initial"] = option.initial;
    result.append(item);
  }
  return result;
}

}  // namespace
}  // namespace blockscope::python

NB_MODULE(_runtime, module) {
  using namespace blockscope;          // NOLINT(google-build-using-namespace)
  using namespace blockscope::python;  // NOLINT(google-build-using-namespace)
  namespace nb = nanobind;
  register_errors();
  // Plugins live until the process ends, and with them what their module holds.
  nb::set_leak_warnings(false);
  keep_freed_memory();
  // Both extension modules use one HDF5, so they share its lock.
  share_library_lock(*reinterpret_cast<std::recursive_mutex*>(
      nb::cast<std::uintptr_t>(nb::module_::import_("blockscope._core").attr("library_lock")())));
  nb::class_<LoadedModel>(module, "LoadedModel")
      .def_prop_ro("text", &LoadedModel::text)
      .def_prop_ro("json",
                   [](const LoadedModel& model) {
                     const std::string json = model.model_json();
                     return nb::bytes(json.data(), json.size());
                   })
      .def_prop_ro("weight_bytes",
                   [](const LoadedModel& model) { return model.model->weight_bytes(); });
  module.def("open_model", &open_model);
  module.def("run_command", &run_command);
  module.def("options", &options_of);
  module.def("main", [](const std::vector<nb::bytes>& words) {
    Arguments arguments(words);
    end_on_signals();
    const nb::gil_scoped_release release;
    return blockscope_probe_run(arguments.count(), arguments.values());
  });
  module.def("plugin_cause", &plugin_cause);
  module.def("add_policy", &add_python_policy);
  module.def("add_strategy", &add_python_strategy);
  module.def("add_cache", &add_python_cache);
  bind_policy_step(module);
  bind_python_strategy(module);
  bind_python_cache(module);
}
