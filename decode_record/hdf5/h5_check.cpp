#include "decode_record/hdf5/h5_check.h"

#include <fmt/format.h>

#include <utility>

#include "decode_record/base/error.h"
#include "decode_record/hdf5/h5_prefetch.h"
#include "decode_record/hdf5/h5_superblock.h"

namespace blockscope::h5 {
namespace {

/// The library's message without addresses, times and buffers: "file write failed: File too large".
std::string tidy(std::string text) {
  constexpr std::string_view kMark = "error message = '";
  const std::size_t mark = text.find(kMark);
  const std::size_t colon = text.find(": ");
  if (mark == std::string::npos || colon == std::string::npos) return text;
  const std::size_t start = mark + kMark.size();
  return text.substr(0, colon + 2) + text.substr(start, text.find('\'', start) - start);
}

std::string innermost_error() {
  std::string text;
  const auto visit = [](unsigned, const H5E_error2_t* error, void* out) -> herr_t {
    auto& message = *static_cast<std::string*>(out);
    if (error->desc != nullptr && *error->desc != '\0') message = error->desc;
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, visit, &text);
  H5Eclear2(H5E_DEFAULT);
  return text.empty() ? "unknown HDF5 error" : tidy(std::move(text));
}

bool tells_of_lock(std::string_view error) {
  return error.find("unable to lock") != std::string_view::npos ||
         error.find("lock file") != std::string_view::npos ||
         error.find("file lock") != std::string_view::npos;
}

std::string hint_for(std::string_view error) {
  const auto says = [error](std::string_view word) {
    return error.find(word) != std::string_view::npos;
  };
  if (tells_of_lock(error)) {
    return " HINT: another process holds the file, or the file system has no locks (NFS, Lustre): "
           "set HDF5_USE_FILE_LOCKING=FALSE in the environment.";
  }
  if (says("No space left") || says("Disk quota") || says("File too large")) {
    return " HINT: the disk is full; free space or choose another place (a capture goes on with "
           "--resume).";
  }
  if (says("checksum") || says("truncated file") || says("addr overflow")) {
    return " HINT: the file is damaged or was cut off; `blockscope repack --repair` keeps the rows "
           "that are whole.";
  }
  return "";
}

}  // namespace

void silence() {
  static const bool no_exit_handler = H5dont_atexit() >= 0;
  thread_local const bool no_printing = H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr) >= 0;
  (void)no_exit_handler;
  (void)no_printing;
}

void fail(std::string_view where, std::string_view what) {
  const std::string error = innermost_error();
  if (const auto missing = take_behind_end()) {
    throw_cut_off(where, missing->place.offset, missing->place.bytes, missing->file_bytes);
  }
  const std::string message = fmt::format("{}: {}: {}.{}", where, what, error, hint_for(error));
  if (tells_of_lock(error)) throw TraceLocked(message);
  throw TraceError(message);
}

hid_t check_id(hid_t id, std::string_view where, std::string_view what) {
  if (id < 0) fail(where, what);
  return id;
}

void check(herr_t status, std::string_view where, std::string_view what) {
  if (status < 0) fail(where, what);
}

}  // namespace blockscope::h5
