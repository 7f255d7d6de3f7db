// The model of make_trace: random queries, keys and values of one sequence, and the attention
// that follows from them, all in double.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "tests/analysis/trace_maker.h"

namespace blockscope::testing {

inline std::size_t u(std::int64_t value) { return static_cast<std::size_t>(value); }

using Values = std::vector<double>;

/// One layer of one denoising step. H heads, K KV heads, B positions, D channels, N external keys;
/// K, D and N are the layer's own.
struct LayerStep {
  Values query;                                // [H, B, D]
  Values key, value;                           // [K, B, D]
  Values hidden;                               // [B, hidden]
  Values external, internal;                   // [H, B, D]; NaN at positions that don't exist
  Values lse_external, lse_internal;           // [H, B]
  std::vector<std::int32_t> topk, topk_token;  // [K, k], [K, B, k]; -1: none
  Values topk_probability;                     // [K, k]
  std::vector<std::int32_t> union_size;        // [K]
};

/// One denoising step of all layers.
struct ModelStep {
  std::vector<LayerStep> layers;
  Values log_p;                    // [B, kVocabulary]
  std::vector<std::int32_t> top1;  // [B]
};

inline constexpr std::int64_t kVocabulary = 12;

class SequenceModel {
 public:
  SequenceModel(const TraceMakerOptions& options, std::uint64_t seed);

  /// Keys and values [K, count, D] per layer enter the prefix.
  struct Committed {
    std::vector<Values> key, value;  // [layer] of [count, K, D], the order of the file
  };
  Committed commit_random(std::int64_t count);
  Committed commit_block();

  void begin_block();
  const ModelStep& next_step();
  std::int64_t context_length() const { return context_; }

 private:
  void evolve(Values& values, std::size_t count);
  void attend(std::size_t layer, LayerStep& step) const;
  void choose_sets(std::size_t layer, LayerStep& step) const;
  /// Probabilities [B, N] of head h over the external keys.
  Values probabilities(std::size_t layer, const LayerStep& step, std::int64_t head) const;
  double score(std::size_t layer, const Values& query, std::int64_t head, std::int64_t position,
               const Values& keys, std::int64_t first) const;
  Committed commit(const std::vector<Values>& keys, const std::vector<Values>& values,
                   std::int64_t count);

  std::int64_t kv_heads(std::size_t layer) const;
  std::int64_t head_dim(std::size_t layer) const;
  std::int64_t num_keys(std::size_t layer) const;  ///< that the layer sees now

  const TraceMakerOptions& o_;
  LayerSizes sizes_;
  std::mt19937_64 random_;
  std::vector<Values> prefix_key_, prefix_value_;  // [layer] of [N, K, D]
  std::int64_t context_ = 0;
  ModelStep step_;
  bool fresh_ = true;  // the block has had no step yet
};

/// Nearest value that the file can hold.
double round_to_file(double value, ArrayType type);
std::uint16_t to_bf16(float value);

}  // namespace blockscope::testing
