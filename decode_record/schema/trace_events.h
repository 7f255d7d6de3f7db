// Events of a row, in addition to its scalars and arrays: what a pass of a bidirectional model
// computed, and the tokens that it took back. The writer takes them, and the reader returns them.
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

/// What a pass computed at one layer of the model. Ranges are ascending, with gaps between them.
struct LayerRanges {
  std::vector<PositionRange> query;  ///< rows with query, attention and FFN
  std::vector<PositionRange> key;    ///< cache entries written
  std::vector<PositionRange> value;
};

/// A token that was taken back: the row masks its position again.
struct RevokedToken {
  std::int64_t position = 0;  ///< after the prompt
  std::int64_t token = 0;     ///< the token before it was masked
  float confidence = 0.0F;    ///< its probability when it was masked again (WINO)
};

}  // namespace blockscope
