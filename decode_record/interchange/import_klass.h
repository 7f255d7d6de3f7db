// Reads the trajectories that KLASS writes with --save_steps (shkim0116/KLASS,
// src/model/llada_klass.py and src/dream_evaluation.py): one sequence in each file, an array of
// steps with the tokens that were decoded and every token that was a mask. docs/interchange.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "decode_record/interchange/imported_trajectory.h"

namespace blockscope {

/// How the two programs of that repository write.
struct KlassDialect {
  std::string_view name;
  std::int64_t first_step;
  int confidence_digits;
  int kl_digits;
};
inline constexpr KlassDialect kKlassLlada{"llada", 1, 4, 6};
inline constexpr KlassDialect kKlassDream{"dream", 0, 6, 10};

/// Throws TrajectoryError (file, place, expected, got) for a file that is no such array or
/// contradicts itself, and UsageError for a fact that neither the file nor `facts` gives. The
/// prompt's length and the block's are those of the first step's masks; a prompt that is not given
/// is stored as masks. `kept` holds the texts and KL divergences.
ImportedTrajectory parse_klass(std::string_view text, const std::string& name,
                               const ImportFacts& facts);

}  // namespace blockscope
