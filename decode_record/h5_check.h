// How the wrappers of h5.h turn HDF5's status codes into exceptions. Internal to h5*.cpp.
#pragma once

#include <string>
#include <string_view>

#include "decode_record/h5.h"

namespace blockscope::h5 {

/// Before any other call: no printing (per thread, as is the error stack of the thread-safe
/// library), and no clean-up at exit. Handles close everything; the library's own clean-up crashes
/// the process when a file could not be closed because its disk is full.
void silence();

/// Throws TraceError with the innermost error of the library and a hint.
[[noreturn]] void fail(std::string_view where, std::string_view what);
hid_t check_id(hid_t id, std::string_view where, std::string_view what);
void check(herr_t status, std::string_view where, std::string_view what);

/// "file:/object".
std::string object_name(const File& file, std::string_view path);

}  // namespace blockscope::h5
