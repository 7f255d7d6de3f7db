// Reads d2Cache's trajectories (Kamichanw/d2Cache, src/frame.py: Frame, FrameDelta, DecodeRecord)
// in the JSON of docs/interchange.md. Each record has one sequence. The file comes from `export
// --format frames`, or is a single record that the Python lines of that document wrote.
#pragma once

#include <string>
#include <string_view>

#include "decode_record/interchange/imported_trajectory.h"

namespace blockscope {

/// d2Cache's token for positions at which a step decoded nothing (INVALID_TOKEN_ID).
inline constexpr std::int64_t kInvalidToken = -100;

/// Throws TrajectoryError (file, place, expected, got) for a file that is not such a record or
/// contradicts itself, and UsageError for a fact that neither the file nor `facts` gives.
ImportedTrajectory parse_frames(std::string_view text, const std::string& name,
                                const ImportFacts& facts);

}  // namespace blockscope
