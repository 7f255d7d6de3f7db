// The datasets of a trace as arrays, any box of any of them: for programs that show a trace as a
// whole, such as the Python package, and look its datasets up by name. Not thread-safe, like
// TraceReader.
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
  std::string type;                 ///< as read() gives it: "u8", "i32", "i64" or "f32"
  std::vector<std::string> axes;    ///< names of the dimension scales, as many as `shape`
  std::vector<std::int64_t> shape;  ///< the growing axis cut to what was committed at opening
  std::string description;          ///< one line
  std::string stored_type;          ///< in the file: `type`, or "bf16"
};

class TraceArrays {
 public:
  /// Opens `path` (or `<path>.partial`) a second time beside a TraceReader, which has checked it.
  /// Throws TraceError.
  explicit TraceArrays(const std::string& path);
  TraceArrays(TraceArrays&&) noexcept;
  TraceArrays& operator=(TraceArrays&&) noexcept;
  ~TraceArrays();

  /// In the order of the schema.
  const std::vector<TraceArray>& list() const { return list_; }
  /// Elements [start, start + count) along every axis, row-major, into `out`, which must have
  /// exactly their size; bfloat16 is widened to float. What was never written is the fill value.
  /// Throws UsageError for a dataset or a box that is not there.
  void read(std::string_view path, std::span<const std::int64_t> start,
            std::span<const std::int64_t> count, std::span<std::byte> out) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
  std::vector<TraceArray> list_;
};

}  // namespace blockscope
