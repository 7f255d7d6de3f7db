// ForwardSeams of a bidirectional model: the cache says which rows are computed, the block's rows
// go through the attention policy (external keys: everything outside the block), the other rows
// through plain attention over all keys.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "probe/caches/canvas_cache.h"
#include "probe/caches/canvas_keys.h"
#include "probe/decode/decode_observer.h"
#include "probe/model/forward_seams.h"
#include "probe/policies/attention_policy.h"
#include "probe/policies/pass_context.h"

namespace blockscope {

class CanvasSeams : public ForwardSeams {
 public:
  /// `observer` may be null; `shadow`: compute the exact values beside the policy.
  CanvasSeams(AttentionPolicy& policy, CanvasCache& cache, CanvasKeys& keys,
              DecodeObserver* observer, bool shadow);

  /// After the keys were told that another block begins.
  void begin_block();
  /// The pass to come: one sequence, with the rows that the cache named.
  void begin_pass(const PassContext& context, const std::vector<int64_t>& rows);
  void end_pass();

  at::Tensor attention_block(int64_t layer, const AttentionLayer& weights, const at::Tensor& x,
                             const RotaryRows& rotary) override;
  at::Tensor attention(const AttentionInput& input) override;
  at::Tensor ffn(int64_t layer, const at::Tensor& x,
                 const std::function<at::Tensor(const at::Tensor&)>& mlp) override;
  void before_layer(int64_t layer, const at::Tensor& hidden) override;

  /// Positions whose attention and FFN the current pass computed, mean over its layers so far.
  double computed_rows() const;

  /// Nanoseconds of the current pass spent in the observer, and in attention without it.
  int64_t observer_ns() const { return observer_ns_; }
  int64_t attention_ns() const { return attention_ns_; }

 private:
  at::Tensor attend_rows(int64_t layer, double scale, const at::Tensor& q,
                         const std::vector<int64_t>& positions);
  at::Tensor attend_block(int64_t layer, double scale, const at::Tensor& q,
                          const std::vector<int64_t>& positions);
  void show_attention(const AttentionInput& input, const ExternalKeys& external,
                      const AttentionParts& used, const std::vector<int64_t>& positions);
  at::Tensor attend_others(int64_t layer, double scale, const at::Tensor& q) const;
  void show_keys(int64_t layer, const LayerWork& work);

  AttentionPolicy& policy_;
  CanvasCache& cache_;
  CanvasKeys& keys_;
  DecodeObserver* observer_;
  bool shadow_;
  const PassContext* context_ = nullptr;
  std::vector<int64_t> rows_;
  /// What an observer saw of the block last, by layer: rows that a pass does not compute keep it.
  struct Seen {
    at::Tensor q, hidden;
    AttentionParts parts;
  };
  std::vector<Seen> seen_;
  int64_t layers_done_ = 0;
  int64_t queries_done_ = 0;
  int64_t observer_ns_ = 0;
  int64_t attention_ns_ = 0;
};

}  // namespace blockscope
