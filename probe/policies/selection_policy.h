// What the sparse policies share: one set of external keys per KV head for the whole block. All B
// tokens and the G query heads of a KV head read the same keys (MAGE, section 3.1). A set is chosen
// before a step, or captured from a step that read everything. Prefill passes, commit passes and
// the first `exact_layers` layers always read everything.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "probe/policies/attention_policy.h"
#include "probe/policies/select_stream.h"
#include "probe/policies/select_worker.h"

namespace blockscope {

struct SelectionOptions {
  int64_t num_layers = 0;
  int64_t k = 0;             // keys per KV head; 0: `density` decides
  double density = 0.0;      // share of the prefix, rounded up to whole keys
  int64_t exact_layers = 0;  // first layers, which read everything (MAGE: 2, FlashBlock: 0)
  bool residual = false;     // keep the attention over unselected keys of the capturing step
  bool overlap = true;       // capture in parallel with the layer, on a second thread or stream

  /// Throws UsageError unless exactly one of k and density is set, to a value in range.
  void check() const;
  /// The number of keys selected from a prefix of `length`: at most all; 0 only if `length` is 0.
  int64_t set_size(int64_t length) const;
};

/// The sets of one sequence at one layer, one per KV head.
struct KeySelection {
  at::Tensor index;         // [K, k] int32, falling score, k <= N
  at::Tensor residual;      // [H, B, D] float32; undefined: none
  at::Tensor lse_residual;  // [H, B]
};

/// One sequence at one layer of one step: views of the batch's tensors, [1, ...].
struct SequenceAttention {
  const SequencePass& pass;
  int64_t slot;
  int64_t layer;
  at::Tensor q;             // [1, H, B, D]
  ExternalKeys external;    // [1, K, N, D]: the sequence's own N
  at::Tensor lse_external;  // [1, H, B], after a step that read everything; else undefined
  double scale;
};

/// Attention over a set of external keys for each sequence. A sequence whose set has no index reads
/// its whole prefix. `index` [K, k] may have a different k in each set. Without TrustedSetsScope,
/// the kernel checks the positions.
AttentionParts selected_attention(const AttentionInput& input, const ExternalKeys& external,
                                  const std::vector<const KeySelection*>& sets);

class SelectionPolicy : public AttentionPolicy {
 public:
  SelectionPolicy(std::string name, SelectionOptions options);
  std::string name() const final { return name_; }
  void begin_pass(const PassContext& context) final;
  AttentionParts attend(const AttentionInput& input, const ExternalKeys& external) final;
  std::optional<std::vector<int64_t>> repeats() const final;
  void end_pass() final {
    worker_.wait();
    stream_.wait();
  }
  ChoosingTime choosing_time() const final {
    return {inline_ns_, worker_.busy_ns(), worker_.waited_ns()};
  }
  void remove(int64_t slot) final;
  int64_t selected_size(int64_t longest) const override {
    // k does not depend on the prompts, because the traces of several ranks must merge.
    return options_.k > 0 ? options_.k : options_.set_size(longest);
  }
  bool keeps_residual() const final { return options_.residual; }

 protected:
  /// Whether this denoising step reads its whole prefix.
  virtual bool dense(const SequencePass& pass) const = 0;
  /// Whether later steps use the set of this dense step.
  virtual bool captures(const SequencePass& /*pass*/) const { return false; }
  /// Whether choose() is the default below.
  virtual bool keeps_sets() const { return false; }
  /// Chooses the set of this step; the default keeps the captured one.
  virtual void choose(const SequenceAttention& /*at*/, KeySelection& /*selection*/) {}
  /// Rows that choose() or the capture reads to choose a set from `length` keys. The default: every
  /// key if the step captures, else none.
  virtual int64_t rows_scored(const SequencePass& pass, int64_t length) const;
  /// Called before a sequence's first pass in a slot, and when a slot takes over another's state.
  virtual void reset_slot(int64_t /*slot*/) {}
  virtual void move_slot(int64_t /*from*/, int64_t /*to*/) {}

  const SelectionOptions& options() const { return options_; }
  /// The k keys with the largest mean probability, from q, the keys and lse_external.
  KeySelection exact_set(const SequenceAttention& at) const;

 private:
  SequenceAttention view(const AttentionInput& input, const ExternalKeys& external, int64_t slot,
                         const at::Tensor& lse_external) const;
  bool is_dense(const SequencePass& pass, int64_t layer) const;
  AttentionParts gather(const AttentionInput& input, const ExternalKeys& external);

  std::string name_;
  SelectionOptions options_;
  const PassContext* context_ = nullptr;
  std::vector<int64_t> sequences_;               // by slot: whose state it holds
  std::vector<std::vector<KeySelection>> sets_;  // by slot and layer
  int64_t generation_ = 0;                       // changes when the sets do
  int64_t inline_ns_ = 0;
  SelectWorker worker_;  // on the host
  SelectStream stream_;  // on a device
};

}  // namespace blockscope
