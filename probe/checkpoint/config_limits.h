// Upper limits for the values of a config.json, far above any published model. They keep every
// product of two sizes within int64.
#pragma once

#include <cstdint>
#include <limits>

namespace blockscope {

inline constexpr std::int64_t kMaxLayers = 4096;
inline constexpr std::int64_t kMaxHeads = 4096;
inline constexpr std::int64_t kMaxHeadDim = 4096;
inline constexpr std::int64_t kMaxWidth = std::int64_t{1} << 22;
inline constexpr std::int64_t kMaxVocab = std::int64_t{1} << 26;
inline constexpr std::int64_t kMaxPositions = std::int64_t{1} << 30;
inline constexpr std::int64_t kMaxExperts = 65'536;
inline constexpr double kMaxTheta = 1e15;  ///< of RoPE; powers and logarithms stay finite in double
inline constexpr double kMaxFactor = 1e6;
inline constexpr std::int64_t kMaxId = std::numeric_limits<std::int32_t>::max();  ///< of tokens

}  // namespace blockscope
