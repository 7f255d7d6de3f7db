// The attention weights of one row: which keys each query of the block looks at. They are computed
// again from the queries and keys that a trace of level full has, for one layer and query head. A
// trace without keys may hold the weights of some layers and heads themselves (--record-maps).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/metrics/similarity_matrix.h"
#include "decode_record/read/trace_reader.h"

namespace blockscope {

/// Keys of one layer and KV head outside the block, as the row read them.
struct KeysOutside {
  std::vector<std::int32_t> positions;  ///< [N], ascending; N as the layer's window has it
  std::vector<float> values;            ///< [N, the layer's head_dim], after QK-norm and RoPE
};
/// `layer` and `kv_head` are recorded slots. Values are empty for a trace that has weights instead.
/// Throws TraceError for a trace with neither.
KeysOutside keys_outside(const TraceReader& trace, std::int64_t row, std::size_t layer,
                         std::size_t kv_head);

struct AttentionMap {
  std::vector<std::int32_t> positions;  ///< [N + T] of the keys: those outside the block, then its
  std::size_t num_external = 0;         ///< N
  std::int32_t block_start = 0;         ///< position of the first query
  std::size_t num_queries = 0;          ///< B
  /// [B, N + T]: exp(q . k * softmax_scale - L), with L over the keys seen. They add up to 1. NaN
  /// for a query that the row did not compute or that meets a NaN; 0 for keys that the query does
  /// not see.
  std::vector<float> weights;
  /// [B]; -inf without keys, NaN as above. Of recorded weights: those that the policy used.
  std::vector<double> lse_external, lse_internal;

  std::size_t num_keys() const { return positions.size(); }
  /// The mean over the queries that the row computed, [N + T]; NaN without any.
  std::vector<float> mean_weights() const;
};

/// The weights of exact attention over all keys that a query sees (seen_keys.h), under every
/// policy. `layer` and `head` are recorded slots. `outside`: keys_outside() of the same row, layer
/// and the head's KV head. Scores are accumulated in float32, the softmax in float64. Throws
/// TraceError below level full or for a row without arrays, or a layer, head or step whose weights
/// were not recorded, CorruptTrace if the number of keys is not that of the layer
/// (LayerSizes::keys_at).
AttentionMap attention_map(const TraceReader& trace, std::int64_t row, std::size_t layer,
                           std::size_t head, const KeysOutside& outside);

/// The recorded slot of the KV head that a recorded query head reads in a recorded layer. Throws
/// TraceError if it was not recorded.
std::size_t kv_slot_of(const TraceReader& trace, std::size_t layer, std::size_t head);

/// The names of regions of a trace's keys: kRegionNames, and the parts of its prompts.
std::vector<std::string> region_names(const TraceMeta& meta);

/// Tokens and regions of the keys of a map, from the state before the row.
struct MapTokens {
  std::vector<std::int64_t> tokens;  ///< [N + T]; -1: undecided
  std::vector<std::size_t> regions;  ///< [N + T], indices into region_names()
};
MapTokens map_tokens(const TraceReader& trace, std::int64_t row, const AttentionMap& map);

/// One array `attention` [position, key] of a step: position in the block, absolute position of the
/// key. request.head unset: the mean over the recorded query heads of the layer. Takes one step;
/// unset: the first recorded one. Throws as similarity_matrix does.
MetricResult attention_matrix(const TraceGroup& traces, const MatrixRequest& request);

}  // namespace blockscope
