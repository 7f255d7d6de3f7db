// The extension module `blockscope._core`: exceptions, locks, progress.
#include "cmake/build_info/build_info.h"
#include "decode_record/hdf5/library_lock.h"
#include "decode_record/read/trace_inventory.h"
#include "python/bindings.h"
#include "python/python_errors.h"

namespace blockscope::python {
std::recursive_mutex& reader_lock() {
  static auto* lock = new std::recursive_mutex;  // never deleted, because traces may be closed when
                                                 // the process ends
  return *lock;
}

std::vector<std::string> to_strings(const std::vector<nb::bytes>& paths) {
  std::vector<std::string> result;
  for (const nb::bytes& path : paths) result.push_back(to_string(path));
  return result;
}

std::function<bool(std::int64_t, std::int64_t)> PythonProgress::callback() {
  return [this](std::int64_t done, std::int64_t total) { return update(done, total); };
}

bool PythonProgress::update(std::int64_t done, std::int64_t total) {
  const Clock::time_point now = Clock::now();
  if (now - last_ < std::chrono::milliseconds(100)) return true;
  last_ = now;
  const nb::gil_scoped_acquire gil;
  try {
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (!function_.is_none()) function_(done, total);
  } catch (nb::python_error& error) {
    error_.emplace(std::move(error));
    return false;
  }
  return true;
}

void PythonProgress::rethrow() {
  if (error_) throw nb::python_error(std::move(*error_));
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

}  // namespace blockscope::python

NB_MODULE(_core, module) {
  using namespace blockscope;  // NOLINT(google-build-using-namespace)
  python::register_errors();
  nanobind::set_leak_warnings(false);  // see runtime/module.cpp
  module.attr("version") = std::string(build_info().version);
  module.attr("program") = "blockscope " + std::string(build_info().version) + " (" +
                           std::string(build_info().git_describe) + ")";
  // For the other extension module, which links the same HDF5.
  module.def("library_lock", [] { return reinterpret_cast<std::uintptr_t>(&library_lock()); });
  module.def("hdf5_version",
             [] { return python::without_gil([] { return hdf5_runtime_version(); }); });
  python::bind_trace(module);
  python::bind_analysis(module);
  python::bind_calibration(module);
  python::bind_commands(module);
  python::bind_figures(module);
  python::bind_report(module);
  python::bind_patches(module);
  python::bind_record(module);
  python::bind_regions(module);
}
