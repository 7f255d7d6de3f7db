// A file driver of our own around HDF5's default one, for files that are only read. It does what
// the library offers no call for:
//  - data behind the end of the file is an error. HDF5 gives zeros for it, so that a trace that was
//    cut off would read as one whose last rows are zeros;
//  - every opening is independent of the others: each refreshes what it knows of a file that is
//  being
//    written, and no opening finds another one's old lengths and chunk indices;
//  - a chunk's place in the file is told with one look-up in the chunk index, and a chunk can be
//    asked for ahead: H5Dread_chunk looks the chunk up and calls the driver, which then only takes
//    down the address. (H5Dget_chunk_info walks through all chunks in HDF5 1.10.)
// Internal to decode_record; HDF5 1.13 changed what a driver is, and has none of this.
#pragma once

#include <cstdint>
#include <optional>

#include "decode_record/hdf5/h5.h"

namespace blockscope::h5 {

/// What the driver does with a read of elements while it lives on this thread.
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

/// The last read of this thread that reached behind the end of its file, once.
struct BehindEnd {
  Place place;
  std::uint64_t file_bytes = 0;
};
std::optional<BehindEnd> take_behind_end();

/// False where it can't be had.
bool set_reading_driver(const H5Plist& access);

}  // namespace blockscope::h5
