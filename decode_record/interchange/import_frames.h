// Reads d2Cache's trajectories (Kamichanw/d2Cache, src/frame.py: Frame, FrameDelta, DecodeRecord),
// one sequence in each record, in the JSON of docs/interchange.md: what `export --format frames`
// writes, or a record alone, as its Python lines write it.
#pragma once

#include <string>
#include <string_view>

#include "decode_record/interchange/imported_trajectory.h"

namespace blockscope {

/// Token that d2Cache puts where a step decoded nothing (INVALID_TOKEN_ID).
inline constexpr std::int64_t kInvalidToken = -100;

/// Throws TrajectoryError (file, place, expected, got) for a file that is no such record or
/// contradicts itself, and UsageError for a fact that neither the file nor `facts` gives.
ImportedTrajectory parse_frames(std::string_view text, const std::string& name,
                                const ImportFacts& facts);

}  // namespace blockscope
