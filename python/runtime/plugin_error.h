// Errors of a plugin's Python code. C++ code sees an Error whose message names the place. When the
// command ends, the caller in Python gets it with the original exception as its cause.
#pragma once

#include <c10/util/Exception.h>
#include <nanobind/nanobind.h>

#include <string>
#include <type_traits>

#include "decode_record/base/error.h"

namespace blockscope::python {

/// Throws PluginError("<where>: ValueError: <text>") and keeps the exception for plugin_cause().
/// For KeyboardInterrupt, throws InterruptedError. Call it with Python's lock.
[[noreturn]] void refuse_plugin(nanobind::python_error& error, const std::string& where);

/// Calls Python code, with Python's lock. Every exception of it becomes a PluginError that begins
/// with where(), and a UsageError stays one.
template <typename Where, typename Work>
std::invoke_result_t<Work> call_plugin(const Where& where, Work&& work) {
  try {
    return work();
  } catch (nanobind::python_error& error) {
    refuse_plugin(error, where());
  } catch (const UsageError& error) {
    throw UsageError(where() + ": " + error.what());
  } catch (const Error& error) {
    throw PluginError(where() + ": " + error.what());
  } catch (const nanobind::cast_error&) {
    throw PluginError(
        where() +
        ": expected another type of result: whole numbers for rows and counts, flags for switches");
  } catch (const c10::Error& error) {
    throw PluginError(where() + ": " + error.what_without_backtrace());
  }
}

/// The kept exception, or None; forgets it. Call it with Python's lock.
nanobind::object plugin_cause();

}  // namespace blockscope::python
