#include "probe/draft/draft_seams.h"

#include <ATen/ATen.h>

#include <utility>

#include "kernels/ops.h"
#include "probe/model/stopwatch.h"
#include "probe/policies/exact_policy.h"

namespace blockscope {

TargetSeams::TargetSeams(KvCache& cache, std::vector<int64_t> layers, int64_t num_layers)
    : cache_(cache), layers_(std::move(layers)), num_layers_(num_layers) {}

void TargetSeams::begin_pass(int64_t length) {
  length_ = length;
  outputs_.assign(layers_.size(), {});
  attention_ns_ = 0;
}

at::Tensor TargetSeams::attention(const AttentionInput& input) {
  const Stopwatch watch(attention_ns_);
  cache_.store(input.layer, 0, input.k, input.v);
  const int64_t committed = cache_.length(0);
  return prefill_attention(input.q, cache_.stored_key(input.layer, 0, length_),
                           cache_.stored_value(input.layer, 0, length_),
                           at::full({1}, committed + length_, at::kLong), /*block_length=*/1,
                           input.scale, committed);
}

void TargetSeams::before_layer(int64_t layer, const at::Tensor& hidden) {
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (layers_[i] + 1 == layer) outputs_[i] = hidden;
  }
}

at::Tensor TargetSeams::taps(const at::Tensor& last) const {
  std::vector<at::Tensor> all = outputs_;
  for (size_t i = 0; i < all.size(); ++i) {
    if (layers_[i] + 1 == num_layers_) all[i] = last;
  }
  return at::cat(all, -1);
}

DraftSeams::DraftSeams(const KvCache& context, DecodeObserver* observer)
    : cache_(context), observer_(observer) {}

void DraftSeams::begin_pass(const PassContext& context) {
  context_ = &context;
  looked_inside_ = observer_ != nullptr && observer_->looks_inside(context);
  observer_ns_ = attention_ns_ = 0;
}

at::Tensor DraftSeams::attention(const AttentionInput& pass_input) {
  AttentionInput input = pass_input;
  const ExternalKeys external{cache_.key(input.layer), cache_.value(input.layer), cache_.lengths()};
  const int64_t weights = input.q.size(1) * input.q.size(2) * external.key.size(2);
  input.keep_weights = looked_inside_ &&
                       weights * static_cast<int64_t>(sizeof(float)) <= kMostKeptWeightBytes &&
                       observer_->wants_weights(*context_, input.layer);
  AttentionParts used;
  {
    const Stopwatch watch(attention_ns_);
    used = exact_attention(input, external);
  }
  if (looked_inside_) {
    const Stopwatch watch(observer_ns_);
    observer_->on_attention({*context_, input, external, used, &used});
  }
  return used.out;
}

void DraftSeams::before_layer(int64_t layer, const at::Tensor& hidden) {
  if (!looked_inside_) return;
  const Stopwatch watch(observer_ns_);
  observer_->on_hidden(*context_, layer, hidden);
}

}  // namespace blockscope
