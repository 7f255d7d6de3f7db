// What the files of the extension module `blockscope._core` share. The module is thin: it hands
// over bytes, numbers, lists and dictionaries; python/blockscope/*.py makes of them what people
// see. Paths and texts cross as bytes, because neither has to be UTF-8.
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
void bind_figures(nb::module_& module);
void bind_report(nb::module_& module);
void bind_record(nb::module_& module);

/// Readers are not thread-safe and share HDF5's one lock: one thread of the process reads at a
/// time. Recursive, because a progress function may use a trace.
std::recursive_mutex& reader_lock();

/// Runs `work` with the reader's lock and without Python's: other threads of Python go on. Nothing
/// waits for the reader's lock while it holds Python's, so that the two can't block each other.
template <typename Work>
auto without_gil(Work&& work) {
  const nb::gil_scoped_release release;
  const std::lock_guard<std::recursive_mutex> lock(reader_lock());
  return std::forward<Work>(work)();
}

/// With the reader's lock, before anything is opened: closes what this process has open of traces
/// that were still being written; each opens again when it is used. HDF5 keeps what it knows of a
/// dataset for as long as anybody has it open, so that a second view of a file that grows would see
/// old lengths beside new counts.
void close_unfinished();

inline std::string to_string(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }
std::vector<std::string> to_strings(const std::vector<nb::bytes>& paths);
inline nb::bytes to_bytes(std::string_view text) { return nb::bytes(text.data(), text.size()); }

/// The values as a bytearray: numpy.frombuffer makes a writable array of it.
template <typename Value>
nb::bytearray to_bytearray(std::span<const Value> values) {
  return nb::bytearray(values.data(), values.size_bytes());
}
template <typename Value>
nb::bytearray to_bytearray(const std::vector<Value>& values) {
  return to_bytearray(std::span<const Value>(values));
}

/// Lets a pass call a Python function, at most ten times a second. What the function raises, and
/// Ctrl-C in the main thread, end the pass and come out of run_shown().
class PythonProgress {
 public:
  /// `function(done, total)` or None.
  explicit PythonProgress(nb::object function) : function_(std::move(function)) {}
  /// For PassOptions::progress: called without Python's lock.
  std::function<bool(std::int64_t, std::int64_t)> callback();
  /// With Python's lock: throws what ended the pass, if it was Python.
  void rethrow();

 private:
  using Clock = std::chrono::steady_clock;
  bool update(std::int64_t done, std::int64_t total);
  nb::object function_;
  std::optional<nb::python_error> error_;
  Clock::time_point last_ = Clock::now();
};

/// without_gil() for work that reports to `progress`.
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
