// Our own file driver around HDF5's default one, for files that are only read. The library has no
// call for what it does:
//  - Data after the end of the file is an error. HDF5 gives zeros, so the last rows of a cut trace
//    would read as zeros.
//  - Every opening of a file is independent. Each one refreshes its own view of a live file, and
//    never uses the old lengths and chunk indices of another opening.
//  - One look-up in the chunk index finds a chunk's place in the file, and a chunk can be loaded in
//    advance. H5Dread_chunk looks the chunk up and calls the driver, which only notes the address.
//    (H5Dget_chunk_info visits all chunks in HDF5 1.10.)
// Internal to decode_record. HDF5 1.13 changed the driver interface; with it all this is off.
#pragma once

#include <cstdint>
#include <optional>

#include "decode_record/hdf5/h5.h"

namespace blockscope::h5 {

/// While it lives: what the driver does with reads of elements on this thread.
class DriverMode {
 public:
  enum class Kind : std::uint8_t { read, prefetch, locate };
  explicit DriverMode(Kind kind);
  ~DriverMode();
  DriverMode(const DriverMode&) = delete;
  DriverMode& operator=(const DriverMode&) = delete;
  /// Kind::locate: the place of the last read.
  static std::optional<OpenPlace> located();
};

/// The last read of this thread that went past the end of its file. Returned only once.
struct BehindEnd {
  Place place;
  std::uint64_t file_bytes = 0;
};
std::optional<BehindEnd> take_behind_end();

/// False if the driver is not available.
bool set_reading_driver(const H5Plist& access);

}  // namespace blockscope::h5
