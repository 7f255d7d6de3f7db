// Adds the trace's name to exceptions that a damaged trace causes. Readers and metrics check the
// values that they use; this catches the remaining cases.
#pragma once

#include <exception>
#include <new>
#include <stdexcept>
#include <string>

#include "decode_record/base/error.h"

namespace blockscope {

/// Runs `work` over the trace at `path`. Errors that damage can cause, and that do not name the
/// trace, become a CorruptTrace that names it. TraceError, UsageError, InterruptedError and other
/// exceptions pass unchanged.
template <typename Work>
auto naming_damage(const std::string& path, const Work& work) {
  const auto damaged = [&path](const std::string& what) {
    return CorruptTrace(path + ": its values contradict each other: " + what +
                        ". HINT: the file is damaged.");
  };
  try {
    return work();
  } catch (const TraceError&) {
    throw;
  } catch (const UsageError&) {
    throw;
  } catch (const InterruptedError&) {
    throw;
  } catch (const Error& error) {
    if (std::string(error.what()).find(path) != std::string::npos) throw;
    throw damaged(error.what());
  } catch (const std::bad_alloc&) {
    throw damaged("they need more memory than the machine has");
  } catch (const std::out_of_range&) {
    throw damaged("an index is out of range");
  } catch (const std::length_error&) {
    throw damaged("a length is out of range");
  } catch (const std::logic_error&) {  // our own error, not damage
    throw;
  } catch (const std::runtime_error&) {  // an error of the machine
    throw;
  } catch (const std::exception& error) {  // such as unexpected JSON
    throw damaged(error.what());
  }
}

}  // namespace blockscope
