// Errors of a plugin's Python code. C++ code sees an Error whose message names the place. When the
// command ends, the caller in Python gets it with the original exception as its cause.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

namespace blockscope::python {

/// Throws Error("<where>: ValueError: <text>") and keeps the exception for plugin_cause(). For
/// KeyboardInterrupt, throws InterruptedError. Call it with Python's lock.
[[noreturn]] void refuse_plugin(nanobind::python_error& error, const std::string& where);

/// The kept exception, or None; forgets it. Call it with Python's lock.
nanobind::object plugin_cause();

}  // namespace blockscope::python
