// ForwardSeams of a decoding run: sends attention to the policy (denoising), to the exact path
// (commit) or to the block-causal kernel (prefill), and stores keys in the KV cache.
#pragma once

#include <cstdint>

#include "probe/decode/decoder.h"
#include "probe/decode/kv_cache.h"
#include "probe/decode/observed_seams.h"
#include "probe/decode/sub_blocks.h"

namespace blockscope {

class DecodeSeams : public ObservedSeams {
 public:
  DecodeSeams(const DecodeOptions& options, AttentionPolicy& policy, KvCache& cache,
              Watcher& watcher);

  /// The pass to come: a prefill of `slot` with `length` positions, of which somebody reads the
  /// last hidden state (`reads_last`) or none, ...
  void begin_prefill(const PassContext& context, int64_t slot, int64_t length, bool reads_last);
  /// ... or a denoising / commit pass of all active slots, over these rows of their blocks. The
  /// context's fused commits are entries behind them: their keys are stored at every layer before
  /// any sequence reads its prefix.
  void begin_blocks(const PassContext& context, const RowRange& rows);
  /// Makes what the pass stored visible.
  void end_pass();

  std::optional<at::Tensor> needed_rows() const override { return needed_; }
  at::Tensor attention_block(int64_t layer, const AttentionLayer& weights, const at::Tensor& x,
                             const RotaryRows& rotary) override;
  at::Tensor attention(const AttentionInput& input) override;
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
  const bool block_cache_;  // one sequence, whose denoising passes may compute a part of B
  int64_t prefill_slot_ = -1;
  int64_t prefill_length_ = 0;
  std::optional<at::Tensor> needed_;  // rows of a prefill
  RowRange rows_;                     // of the block that this pass computes
  at::Tensor row_index_;              // the same, [rows_.count] int64
  std::vector<int64_t> stored_;       // [S] positions that fused commits store; empty: none does
  std::vector<at::Tensor> block_key_, block_value_;  // by layer [1, K, B, D], with a block cache
};

}  // namespace blockscope
