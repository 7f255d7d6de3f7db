// ForwardSeams of a draft and of its target.
#pragma once

#include <cstdint>
#include <vector>

#include "probe/decode/decode_observer.h"
#include "probe/decode/kv_cache.h"
#include "probe/model/forward_seams.h"

namespace blockscope {

/// A target's pass over positions behind its cache, each of which sees itself and what stands
/// before it. Their keys are stored, and stay invisible until somebody commits those of accepted
/// tokens.
class TargetSeams : public ForwardSeams {
 public:
  /// `layers`: whose outputs are kept, of `num_layers`.
  TargetSeams(KvCache& cache, std::vector<int64_t> layers, int64_t num_layers);

  void begin_pass(int64_t length);
  at::Tensor attention(const AttentionInput& input) override;
  void before_layer(int64_t layer, const at::Tensor& hidden) override;
  /// The kept outputs of the pass side by side, [1, T, layers * hidden_size]; `last`: what the
  /// model returned, which stands for the last layer's output (with the final norm, as in
  /// transformers).
  at::Tensor taps(const at::Tensor& last) const;
  int64_t attention_ns() const { return attention_ns_; }

 private:
  KvCache& cache_;
  std::vector<int64_t> layers_;
  int64_t num_layers_;
  int64_t length_ = 0;
  std::vector<at::Tensor> outputs_;  // by entry of layers_
  int64_t attention_ns_ = 0;
};

/// A draft's pass over its block: every position sees the context's keys (external) and the whole
/// block (internal).
class DraftSeams : public ForwardSeams {
 public:
  DraftSeams(const KvCache& context, DecodeObserver* observer);

  void begin_pass(const PassContext& context);
  at::Tensor attention(const AttentionInput& input) override;
  void before_layer(int64_t layer, const at::Tensor& hidden) override;
  int64_t observer_ns() const { return observer_ns_; }
  int64_t attention_ns() const { return attention_ns_; }

 private:
  const KvCache& cache_;
  DecodeObserver* observer_;
  const PassContext* context_ = nullptr;
  bool looked_inside_ = false;
  int64_t observer_ns_ = 0;
  int64_t attention_ns_ = 0;
};

}  // namespace blockscope
