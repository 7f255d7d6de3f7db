// Values of a trace at a known place in the file. TraceReader::locate finds the place. Reading the
// values needs neither HDF5 nor its one lock, so any thread may do it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace blockscope {

/// The range of integers that are positions, tokens or marks.
struct ValueBounds {
  std::int64_t least = 0;
  std::int64_t most = 0;
};

/// One piece of an open file with unconverted values. It can be read until its TraceReader is
/// refreshed or destroyed.
struct LocatedValues {
  int descriptor = -1;
  std::uint64_t offset = 0;
  std::size_t bytes = 0;
  std::string_view dataset;           ///< "file:/path", for messages
  std::size_t element_bytes = 1;      ///< of the file's elements
  std::int64_t row = 0;               ///< their row, for messages
  std::optional<ValueBounds> bounds;  ///< only for integers that are indices

  /// Reads the values into `out`, which must have `bytes` bytes, if the system has them in memory.
  /// False if it may not have all of them. Throws as read().
  bool read_cached(std::span<std::byte> out) const;
  /// Reads the values into `out`. Throws CorruptTrace if the file ends before them or a value is
  /// out of bounds, TraceError if they can't be read.
  void read(std::span<std::byte> out) const;
  /// Asks the system to load the values into memory soon. From then on, the system reads nothing
  /// else of the file ahead.
  void prefetch() const;
};

}  // namespace blockscope
