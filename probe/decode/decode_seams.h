// ForwardSeams of a decoding run. It sends attention to the policy (denoising), to the exact path
// (commit) or to the block-causal kernel (prefill), and stores keys in the KV cache.
#pragma once

#include <cstdint>

#include "probe/decode/decoder.h"
#include "probe/decode/kv_cache.h"
#include "probe/decode/observed_seams.h"
#include "probe/decode/sub_blocks.h"

namespace blockscope {

/// Causal attention of the last rows to the newest `window` keys, each row's own included: q
/// [1, H, T, D], key and value [1, K, N, D] -> [1, H, T, D].
at::Tensor windowed_attention(const at::Tensor& q, const at::Tensor& key, const at::Tensor& value,
                              int64_t window, double scale);

class DecodeSeams : public ObservedSeams {
 public:
  DecodeSeams(const DecodeOptions& options, AttentionPolicy& policy, KvCache& cache,
              Watcher& watcher);

  /// Begins a prefill of `slot` with `length` positions. `reads_last`: whether the last position's
  /// hidden state is needed; the others are not.
  void begin_prefill(const PassContext& context, int64_t slot, int64_t length, bool reads_last);
  /// Begins a denoising or commit pass of all active slots, over these rows of their blocks. The
  /// context's fused commits are the last entries. Every layer stores their keys before any
  /// sequence reads its prefix.
  void begin_blocks(const PassContext& context, const RowRange& rows);
  /// Makes what the pass stored visible.
  void end_pass();

  bool on_canvas() const override { return options_.canvas && prefill_slot_ < 0; }
  std::optional<at::Tensor> needed_rows() const override { return needed_; }
  at::Tensor attention_block(int64_t layer, const AttentionLayer& weights, const at::Tensor& x,
                             const RotaryRows& rotary) override;
  at::Tensor attention(const AttentionInput& input) override;
  at::Tensor patched_hidden(int64_t layer, const at::Tensor& hidden) override;
  void routed(int64_t layer, const RouterChoice& choice) override;

 private:
  at::Tensor shown_rows(const at::Tensor& hidden) const override;
  at::Tensor prefill_attention_of(const AttentionInput& input);
  at::Tensor block_attention(const AttentionInput& input);
  at::Tensor denoising_attention(const AttentionInput& input);
  at::Tensor fused_commits(const AttentionInput& input);
  AttentionInput with_block_keys(const AttentionInput& input);
  bool stores(const SequencePass& sequence) const;
  at::Tensor without_commits(const at::Tensor& rows) const;
  void store(const AttentionInput& input, int64_t row, int64_t slot, const SequencePass& pass);

  const DecodeOptions& options_;
  AttentionPolicy& policy_;
  KvCache& cache_;
  const bool block_cache_;  // denoising passes of the one sequence may compute a part of the block
  int64_t prefill_slot_ = -1;
  int64_t prefill_length_ = 0;
  std::optional<at::Tensor> needed_;  // rows of a prefill that are read
  RowRange rows_;                     // rows of the block that this pass computes
  at::Tensor row_index_;              // the same, [rows_.count] int64
  std::vector<int64_t> stored_;       // [S] positions that fused commits store; empty: no commits
  std::vector<at::Tensor> block_key_, block_value_;  // by layer [1, K, B, D], with a block cache
};

}  // namespace blockscope
