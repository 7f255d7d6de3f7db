// The extension module `blockscope._core`: exceptions, locks, progress.
#include "cmake/build_info/build_info.h"
#include "decode_record/base/error.h"
#include "decode_record/frames/frame.h"
#include "decode_record/read/trace_inventory.h"
#include "python/bindings.h"

namespace blockscope::python {
namespace {

/// Raises the class `name` of blockscope/errors.py. The message may not be UTF-8, because it may
/// hold a path or a text of a file.
void set_error(PyObject* errors, const char* name, const std::exception& error) {
  PyObject* type = PyObject_GetAttrString(errors, name);
  const std::string_view what = error.what();
  PyObject* text =
      PyUnicode_DecodeUTF8(what.data(), static_cast<Py_ssize_t>(what.size()), "backslashreplace");
  if (type != nullptr && text != nullptr) PyErr_SetObject(type, text);
  Py_XDECREF(type);
  Py_XDECREF(text);
}

void translate(const std::exception_ptr& thrown, void* payload) {
  auto* errors = static_cast<PyObject*>(payload);
  try {
    std::rethrow_exception(thrown);
  } catch (const FrameError& error) {
    set_error(errors, "FrameError", error);
  } catch (const TraceLocked& error) {
    set_error(errors, "TraceLocked", error);
  } catch (const NotATrace& error) {
    set_error(errors, "NotATrace", error);
  } catch (const UnsupportedVersion& error) {
    set_error(errors, "UnsupportedVersion", error);
  } catch (const CorruptTrace& error) {
    set_error(errors, "CorruptTrace", error);
  } catch (const TraceError& error) {
    set_error(errors, "TraceError", error);
  } catch (const UsageError& error) {
    set_error(errors, "UsageError", error);
  } catch (const CalibrationError& error) {
    set_error(errors, "CalibrationError", error);
  } catch (const Error& error) {
    set_error(errors, "Error", error);
  }
}

}  // namespace

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
  nanobind::object errors = nanobind::module_::import_("blockscope.errors");
  nanobind::register_exception_translator(&python::translate, errors.release().ptr());
  module.attr("version") = std::string(build_info().version);
  module.attr("program") = "blockscope " + std::string(build_info().version) + " (" +
                           std::string(build_info().git_describe) + ")";
  module.def("hdf5_version", [] { return hdf5_runtime_version(); });
  python::bind_trace(module);
  python::bind_analysis(module);
  python::bind_calibration(module);
  python::bind_figures(module);
  python::bind_report(module);
  python::bind_patches(module);
  python::bind_record(module);
  python::bind_regions(module);
}
