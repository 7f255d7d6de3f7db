#include "python/runtime/plugin_error.h"

#include <fmt/format.h>

#include "decode_record/base/error.h"

namespace nb = nanobind;

namespace blockscope::python {
namespace {

PyObject* kept_exception = nullptr;

}  // namespace

void refuse_plugin(nb::python_error& error, const std::string& where) {
  Py_XDECREF(kept_exception);
  kept_exception = nb::borrow(error.value()).release().ptr();
  if (error.matches(PyExc_KeyboardInterrupt)) throw InterruptedError("nothing was written");
  const std::string name = nb::inst_name(error.value()).c_str();
  nb::object text = nb::str(nb::handle(error.value()));
  throw PluginError(fmt::format("{}: {}: {}", where, name, nb::cast<nb::str>(text).c_str()));
}

nb::object plugin_cause() {
  if (kept_exception == nullptr) return nb::none();
  nb::object kept = nb::steal<nb::object>(kept_exception);
  kept_exception = nullptr;
  return kept;
}

}  // namespace blockscope::python
