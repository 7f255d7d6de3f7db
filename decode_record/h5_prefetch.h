// Reads chunks ahead into the page cache. HDF5 1.10 tells where a chunk lies only by walking
// through all of them, but looks the place up at once when it reads; so a read-only trace is opened
// through a virtual file driver that hands everything on to HDF5's own and, while a chunk is
// prefetched, asks the system to read instead of reading. Internal to decode_record.
#pragma once

#include "decode_record/h5.h"

namespace blockscope::h5 {

/// Makes files opened with this access list prefetch. False where this build of HDF5 has another
/// driver interface; such files are read as ever, without reading ahead.
bool set_prefetching_driver(const H5Plist& access);

/// While one lives, what this thread reads of raw data from such files goes nowhere: the system is
/// asked to have it in memory soon.
class Prefetching {
 public:
  Prefetching();
  Prefetching(const Prefetching&) = delete;
  Prefetching& operator=(const Prefetching&) = delete;
  ~Prefetching();
};

}  // namespace blockscope::h5
