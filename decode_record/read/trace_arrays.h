// Reads any box of any dataset of a trace, by the dataset's name: for programs that show a trace as
// a whole, such as the Python package. Not thread-safe, like TraceReader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace blockscope {

struct TraceArray {
  std::string path;                 ///< "/attention/external"
  std::string type;                 ///< the type that read() gives: "u8", "i32", "i64" or "f32"
  std::vector<std::string> axes;    ///< names of the dimension scales, as many as `shape`
  std::vector<std::int64_t> shape;  ///< the growing axis is cut to what was committed at opening
  std::string description;          ///< one line
  std::string stored_type;          ///< the type in the file: `type`, or "bf16", "f16"
};

class TraceArrays {
 public:
  /// Opens `path` (or `<path>.partial`), which a TraceReader must have opened and checked before.
  /// Throws TraceError.
  explicit TraceArrays(const std::string& path);
  TraceArrays(TraceArrays&&) noexcept;
  TraceArrays& operator=(TraceArrays&&) noexcept;
  ~TraceArrays();

  /// In the order of the schema.
  const std::vector<TraceArray>& list() const { return list_; }
  /// Reads elements [start, start + count) along every axis, row-major, into `out`, which must have
  /// exactly their size. bfloat16 is widened to float. Values that were never written are the fill
  /// value. Throws UsageError for a dataset or a box that does not exist.
  void read(std::string_view path, std::span<const std::int64_t> start,
            std::span<const std::int64_t> count, std::span<std::byte> out) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
  std::vector<TraceArray> list_;
};

}  // namespace blockscope
