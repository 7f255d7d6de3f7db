// What a trace file holds, dataset by dataset, and what other files it needs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace blockscope {

/// Version of the HDF5 library this process runs with, such as "1.10.8"; empty if it won't say.
std::string hdf5_runtime_version();

struct DatasetInfo {
  std::string path;
  std::string type;                 // "u8", "i32", "i64", "f32" or "bf16"
  std::vector<std::string> axes;    // names of the dimension scales, as many as `shape`
  std::vector<std::int64_t> shape;  // the growing axis cut to what is committed
  std::int64_t bytes = 0;           // of that shape, uncompressed
  std::int64_t stored_bytes = 0;    // in the file, with reserved room, after compression
  bool compressed = false;
};

/// Opens `path` (or `<path>.partial`); throws TraceError.
std::vector<DatasetInfo> list_datasets(const std::string& path);

/// The files whose rows a merged trace shows, as absolute paths; none for a trace that holds its
/// own rows, or that can't be read (whoever reads it says why).
std::vector<std::string> list_parts(const std::string& path);

}  // namespace blockscope
