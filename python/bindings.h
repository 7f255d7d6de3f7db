// Shared parts of the extension module `blockscope._core`. The module only passes bytes, numbers,
// lists and dictionaries. python/blockscope/*.py turns them into the public API. Paths and texts
// are passed as bytes, because they may not be UTF-8.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace blockscope::python {

namespace nb = nanobind;

void bind_trace(nb::module_& module);
void bind_analysis(nb::module_& module);
void bind_calibration(nb::module_& module);
void bind_commands(nb::module_& module);
void bind_figures(nb::module_& module);
void bind_report(nb::module_& module);
void bind_patches(nb::module_& module);
void bind_record(nb::module_& module);
void bind_regions(nb::module_& module);

/// Readers are not thread-safe, so only one thread of the process reads at a time. The lock is
/// recursive, because a progress function may use a trace. Calls of HDF5 take another lock, for the
/// call alone (library_lock.h), so a run of the runtime writes while this module reads.
std::recursive_mutex& reader_lock();

/// Runs `work` with the reader's lock and without Python's, so other Python threads continue.
/// Nothing waits for the reader's lock while it holds Python's, so the two locks can't block each
/// other.
template <typename Work>
auto without_gil(Work&& work) {
  const nb::gil_scoped_release release;
  const std::lock_guard<std::recursive_mutex> lock(reader_lock());
  return std::forward<Work>(work)();
}

/// A trace that stays open between calls. Its functions are called with the reader's lock.
class OpenTrace {
 public:
  virtual bool unfinished() const = 0;
  virtual void drop() = 0;  ///< closes it until it is used again
  static std::set<OpenTrace*>& all();

 protected:
  ~OpenTrace() = default;
};

/// Closes all traces of this process that were still being written; each opens again when it is
/// used. Call it with the reader's lock, before anything is opened. HDF5 keeps the properties of a
/// dataset while it is open, so a second view of a growing file would see old lengths together with
/// new counts.
void close_unfinished();

inline std::string to_string(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }
std::vector<std::string> to_strings(const std::vector<nb::bytes>& paths);
inline nb::bytes to_bytes(std::string_view text) { return nb::bytes(text.data(), text.size()); }

/// The values as a bytearray, from which numpy.frombuffer makes a writable array.
template <typename Value>
nb::bytearray to_bytearray(std::span<const Value> values) {
  return nb::bytearray(values.data(), values.size_bytes());
}
template <typename Value>
nb::bytearray to_bytearray(const std::vector<Value>& values) {
  return to_bytearray(std::span<const Value>(values));
}

/// Lets a pass call a Python function, at most ten times a second. An exception of the function, or
/// Ctrl-C in the main thread, ends the pass and is raised by run_shown().
class PythonProgress {
 public:
  /// `function(done, total)` or None.
  explicit PythonProgress(nb::object function) : function_(std::move(function)) {}
  /// For PassOptions::progress; called without Python's lock.
  std::function<bool(std::int64_t, std::int64_t)> callback();
  /// Throws the exception that ended the pass, if it came from Python. Call it with Python's lock.
  void rethrow();

 private:
  using Clock = std::chrono::steady_clock;
  bool update(std::int64_t done, std::int64_t total);
  nb::object function_;
  std::optional<nb::python_error> error_;
  Clock::time_point last_ = Clock::now();
};

/// Like without_gil(), for work that reports to `progress`.
template <typename Work>
auto run_shown(PythonProgress& progress, Work&& work) {
  try {
    return without_gil(std::forward<Work>(work));
  } catch (...) {
    progress.rethrow();
    throw;
  }
}

}  // namespace blockscope::python
