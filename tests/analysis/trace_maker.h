// Makes traces of odd shapes whose every dataset is true: queries, keys and values are random (and
// correlated from step to step), attention is computed from them in double, and everything else
// (LSEs, sets, recall, summaries) from that attention, over valid positions only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "decode_record/schema/trace_meta.h"

namespace blockscope::testing {

struct TraceMakerOptions {
  RecordLevel level = RecordLevel::full;
  ArrayType array_type = ArrayType::bf16;
  std::int64_t layers = 3, heads = 4, kv_heads = 2, head_dim = 8, hidden_size = 12;
  /// [layers] each; empty: all layers alike. kv_heads and head_dim are then the largest.
  std::vector<std::int64_t> layer_kv_heads, layer_head_dim, layer_window;
  bool noise = false;  ///< canvases without masks: each step accepts anew, the rest is drawn anew
  std::int64_t block_length = 4;
  std::int64_t sequences = 2, blocks = 2, steps = 4, prompt = 6;
  bool unequal = false;  ///< sequence i: prompt + i, 1 + (blocks - 1 + i) % blocks blocks, steps
                         ///< of each block random in [1, steps]
  bool interleaved = false;  ///< rows of a batch of all sequences, not one sequence after the other
  std::int64_t invalid = 0;  ///< last positions of every block that do not exist (values: NaN)
  std::vector<std::int64_t> record_layers, record_heads, record_kv_heads;  ///< empty: all
  std::vector<std::int64_t> record_steps, record_blocks;                   ///< empty: all
  std::int64_t set_size = 3;
  SetNormaliser set_normaliser = SetNormaliser::prefix;
  double correlation = 0.9;  ///< of queries, keys, values and hidden states with the step before
  std::string policy = "exact";  ///< "flashblock": A_out, L_out of the last step that reads by tau
  double tau = 2.0;
  bool shadow = false;
  double nan = 0.0, inf = 0.0, zero = 0.0;  ///< chance per layer and dataset of one bad element
                                            ///< (zero: one vector of length 0)
  bool partial = false;  ///< stop in the middle of the last block, leave PATH.partial
  bool aborted = false;  ///< the same, then resume: the sequence is aborted and decoded again
  std::uint64_t seed = 1;
  std::string digest = "0123";  ///< of the checkpoint, in /model/json
};

LayerSizes sizes_of(const TraceMakerOptions& options);

/// Writes `path` (or `path`.partial). Throws what TraceWriter throws.
void make_trace(const std::string& path, const TraceMakerOptions& options);

}  // namespace blockscope::testing
