// The inner loops of the set metrics. As in row_products.h, they are compiled once per instruction
// set and include no library header.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace blockscope {

/// Positions are -1 (padding) or above, ranks negative (none) or above.
struct SetLoops {
  const char* instruction_set;

  /// The bitwise OR of all positions + 1.
  uint32_t (*bits)(const int32_t* positions, size_t count);
  /// Number of entries equal to -1.
  size_t (*padding)(const int32_t* positions, size_t count);
  /// out[i] = table[positions[i] + 1] - base.
  void (*ranks)(const int32_t* table, int32_t base, const int32_t* positions, size_t count,
                int32_t* out);
  /// Number of ranks in [0, limit).
  size_t (*count_below)(const int32_t* ranks, size_t count, int32_t limit);
  /// Sum of the values with a rank in [0, limit). The others may be NaN.
  double (*sum_below)(const float* values, const int32_t* ranks, size_t count, int32_t limit);
  double (*sum)(const float* values, size_t count);
};

extern const SetLoops kSetLoopsBaseline;
extern const SetLoops kSetLoopsAvx2;
extern const SetLoops kSetLoopsAvx512;

/// The fastest variant that this processor can run.
const SetLoops& best_set_loops();

/// The variants that this processor can run, fastest first. `count`: their number, at least one.
const SetLoops* const* available_set_loops(size_t* count);

}  // namespace blockscope
