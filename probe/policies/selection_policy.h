// What the sparse policies share: one set of external keys per KV head for the whole block (MAGE,
// section 3.1: all B tokens and the G query heads of a KV head read the same keys), either chosen
// before a step or captured from a step that read everything. Prefill and commit passes, and the
// first `exact_layers` layers, read everything under every policy.
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
  int64_t k = 0;             // keys per KV head; 0: by density
  double density = 0.0;      // share of the prefix, rounded up to whole keys
  int64_t exact_layers = 0;  // the first layers read everything (MAGE: 2, FlashBlock: 0)
  bool residual = false;     // keep the attention over unselected keys of the capturing step
  bool overlap = true;       // capture beside the rest of the layer, on a second thread or stream

  /// Throws UsageError: k or density must be set, not both, and be sensible.
  void check() const;
  /// Keys selected from a prefix of `length`: at most all, at least one if there is one.
  int64_t set_size(int64_t length) const;
};

/// A set per KV head of one sequence at one layer.
struct KeySelection {
  at::Tensor index;         // [K, k] int32, falling score, k <= N
  at::Tensor residual;      // [H, B, D] float32, undefined: none
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
    // k whatever the prompts are: the traces of several ranks must merge.
    return options_.k > 0 ? options_.k : options_.set_size(longest);
  }
  bool keeps_residual() const final { return options_.residual; }

 protected:
  /// Reads its whole prefix at this denoising step.
  virtual bool dense(const SequencePass& pass) const = 0;
  /// A dense step whose set later steps use.
  virtual bool captures(const SequencePass& /*pass*/) const { return false; }
  /// Whether choose() is the default below.
  virtual bool keeps_sets() const { return false; }
  /// The set of this step; the default keeps the one that was captured.
  virtual void choose(const SequenceAttention& /*at*/, KeySelection& /*selection*/) {}
  /// Rows read for a set: by choose(), or for the capture. `length` keys; undefined costs nothing.
  virtual int64_t rows_scored(const SequencePass& pass, int64_t length) const;
  /// Before a slot's first pass as this sequence, and when a slot takes over another's state.
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
  int64_t generation_ = 0;                       // of the sets
  int64_t inline_ns_ = 0;
  SelectWorker worker_;  // on the host
  SelectStream stream_;  // on a device
};

}  // namespace blockscope
