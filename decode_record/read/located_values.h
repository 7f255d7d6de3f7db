// Values of a trace whose place in the file is known. HDF5 and its one lock have no part in reading
// them, so any thread may: TraceReader::locate finds the place, whoever wants the values reads
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace blockscope {

/// What integers that are positions, tokens or marks may be.
struct ValueBounds {
  std::int64_t least = 0;
  std::int64_t most = 0;
};

/// One piece of an open file with values as they are. Can be read for as long as the TraceReader it
/// comes from lives and is not refreshed.
struct LocatedValues {
  int descriptor = -1;
  std::uint64_t offset = 0;
  std::size_t bytes = 0;
  std::string_view dataset;           ///< "file:/path", for messages
  std::size_t element_bytes = 1;      ///< of the file's elements
  std::int64_t row = 0;               ///< that they are of, for messages
  std::optional<ValueBounds> bounds;  ///< of integers that are indices

  /// Reads them into `out`, which must have `bytes` bytes, if the system has them in memory; false
  /// where it may not have all. Throws as read().
  bool read_cached(std::span<std::byte> out) const;
  /// Reads them into `out`. Throws CorruptTrace where the file ends before them and for values out
  /// of their bounds, TraceError where they can't be read.
  void read(std::span<std::byte> out) const;
  /// Asks the system to have them in memory soon, and from then on to read nothing of the file that
  /// was not asked for.
  void prefetch() const;
};

}  // namespace blockscope
