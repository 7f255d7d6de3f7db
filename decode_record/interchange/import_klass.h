// Reads the trajectories that KLASS writes with --save_steps (shkim0116/KLASS,
// src/model/llada_klass.py and src/dream_evaluation.py). A file has one sequence: an array of
// steps, each with the decoded tokens and with all tokens that were masks. See docs/interchange.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "decode_record/interchange/imported_trajectory.h"

namespace blockscope {

/// What differs between the files of the two programs of that repository.
struct KlassDialect {
  std::string_view name;
  std::int64_t first_step;
  int confidence_digits;
  int kl_digits;
};
inline constexpr KlassDialect kKlassLlada{"llada", 1, 4, 6};
inline constexpr KlassDialect kKlassDream{"dream", 0, 6, 10};

/// Throws TrajectoryError (file, place, expected, got) for a file that is not such an array or
/// contradicts itself, and UsageError for a fact that neither the file nor `facts` gives. The first
/// step's masks give the lengths of prompt and block. A prompt that is not given is stored as
/// masks. `kept` holds the texts and KL divergences.
ImportedTrajectory parse_klass(std::string_view text, const std::string& name,
                               const ImportFacts& facts);

}  // namespace blockscope
