// What a row says beside its scalars and arrays: what a pass of a bidirectional model computed, and
// the tokens it took back. The writer takes these, the reader returns them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace blockscope {

/// Positions [start, stop), absolute.
struct PositionRange {
  std::int32_t start = 0;
  std::int32_t stop = 0;
  bool operator==(const PositionRange&) const = default;
};
/// The ranges of ascending positions.
std::vector<PositionRange> ranges_of(std::span<const std::int64_t> positions);

/// What a pass computed at one layer of the model; ranges ascending, with a gap between two.
struct LayerRanges {
  std::vector<PositionRange> query;  ///< query, attention and FFN
  std::vector<PositionRange> key;    ///< entries written
  std::vector<PositionRange> value;
};

/// A token taken back: the row masks its position again.
struct RevokedToken {
  std::int64_t position = 0;  ///< after the prompt
  std::int64_t token = 0;     ///< what stood there
  float confidence = 0.0F;    ///< the probability that condemned it
};

}  // namespace blockscope
