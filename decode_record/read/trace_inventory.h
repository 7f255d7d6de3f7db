// The datasets of a trace file, and the other files that it needs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace blockscope {

/// Version of the HDF5 library that this process runs with, such as "1.10.8"; empty if unknown.
std::string hdf5_runtime_version();

struct DatasetInfo {
  std::string path;
  std::string type;                 // "u8", "i32", "i64", "f32" or "bf16"
  std::vector<std::string> axes;    // names of the dimension scales, as many as `shape`
  std::vector<std::int64_t> shape;  // the growing axis cut to what is committed
  std::int64_t bytes = 0;           // of that shape, uncompressed
  std::int64_t stored_bytes = 0;    // in the file: compressed, with reserved room
  bool compressed = false;
};

/// Opens `path` (or `<path>.partial`); throws TraceError.
std::vector<DatasetInfo> list_datasets(const std::string& path);

/// Absolute paths of the files that hold the rows of a merged trace. Empty for a trace that holds
/// its own rows, or that can't be read (reading it gives the reason).
std::vector<std::string> list_parts(const std::string& path);

}  // namespace blockscope
