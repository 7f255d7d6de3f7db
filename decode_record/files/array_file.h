// An HDF5 file of labelled arrays, for results. xarray, h5py and MATLAB read it with the names of
// its axes. It is not a trace (trace_writer.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "decode_record/files/output_file.h"

namespace blockscope {

using ArrayAttribute = std::pair<std::string, std::variant<std::string, std::int64_t>>;

class ArrayFile {
 public:
  /// Writes the content of `output`, which must outlive it. All members throw TraceError with
  /// HDF5's reason (a full disk).
  explicit ArrayFile(const OutputFile& output);
  ~ArrayFile();
  ArrayFile(const ArrayFile&) = delete;
  ArrayFile& operator=(const ArrayFile&) = delete;

  /// Adds a group, such as "/similarity". The group "/" exists.
  void add_group(const std::string& path, const std::vector<ArrayAttribute>& attributes);
  /// A dimension scale at `path` ("/similarity/layer"): coordinates along one axis.
  void add_axis(const std::string& path, std::span<const double> coordinates);
  void add_axis(const std::string& path, std::span<const std::string> labels);
  /// Row-major values. `axes` are paths of axes that were added before; none: a scalar.
  void add_array(const std::string& path, const std::vector<std::string>& axes,
                 std::span<const double> values, const std::vector<ArrayAttribute>& attributes);
  void add_array(const std::string& path, const std::vector<std::string>& axes,
                 std::span<const std::int64_t> values,
                 const std::vector<ArrayAttribute>& attributes);
  /// Closes the file. When this returns, everything was handed to the system.
  void close();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace blockscope
