#include "python/python_errors.h"

#include <nanobind/nanobind.h>

#include <string_view>

#include "decode_record/base/error.h"
#include "decode_record/frames/frame.h"

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
  } catch (const InterruptedError& error) {
    set_error(errors, "Interrupted", error);
  } catch (const CheckpointError& error) {
    set_error(errors, "CheckpointError", error);
  } catch (const PromptError& error) {
    set_error(errors, "PromptError", error);
  } catch (const UsageError& error) {
    set_error(errors, "UsageError", error);
  } catch (const CalibrationError& error) {
    set_error(errors, "CalibrationError", error);
  } catch (const Error& error) {
    set_error(errors, "Error", error);
  }
}

}  // namespace

void register_errors() {
  nanobind::object errors = nanobind::module_::import_("blockscope.errors");
  nanobind::register_exception_translator(&translate, errors.release().ptr());
}

}  // namespace blockscope::python
