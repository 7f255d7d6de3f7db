#include "probe/decode/canvas_seams.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <stdexcept>

#include "kernels/ops.h"
#include "probe/model/stopwatch.h"
#include "probe/policies/exact_policy.h"

namespace blockscope {
namespace {

/// Entries [first, first + count) of an ascending list are the positions of [begin, end) in it.
struct Part {
  int64_t first = 0, count = 0;
};

Part part_of(const std::vector<int64_t>& positions, int64_t begin, int64_t end) {
  const auto first = std::lower_bound(positions.begin(), positions.end(), begin);
  const auto last = std::lower_bound(first, positions.end(), end);
  return {first - positions.begin(), last - first};
}

/// `seen` [1, H, B, ...] with `rows` of its third dimension replaced by `now` [1, H, R, ...]; NaN
/// where nothing was seen before.
at::Tensor with_rows(const at::Tensor& seen, const at::Tensor& now, const at::Tensor& rows,
                     int64_t block_length) {
  at::Tensor result;
  if (seen.defined()) {
    result = seen.clone();
  } else {
    std::vector<int64_t> shape = now.sizes().vec();
    shape[2] = block_length;
    result = at::full(shape, std::numeric_limits<double>::quiet_NaN(), now.options());
  }
  return result.index_copy_(2, rows, now);
}

}  // namespace

CanvasSeams::CanvasSeams(AttentionPolicy& policy, CanvasCache& cache, CanvasKeys& keys,
                         DecodeObserver* observer, bool shadow)
    : policy_(policy), cache_(cache), keys_(keys), observer_(observer), shadow_(shadow) {}

void CanvasSeams::begin_block() { seen_.clear(); }

void CanvasSeams::begin_pass(const PassContext& context, const std::vector<int64_t>& rows) {
  context_ = &context;
  rows_ = rows;
  observer_ns_ = attention_ns_ = 0;
  layers_done_ = queries_done_ = 0;
  policy_.begin_pass(context);
}

void CanvasSeams::end_pass() {
  const Stopwatch watch(attention_ns_);  // what runs beside the layers is waited for here
  policy_.end_pass();
}

at::Tensor CanvasSeams::attention_block(int64_t layer, const AttentionLayer& weights,
                                        const at::Tensor& x, const RotaryRows& rotary) {
  LayerWork work;
  const RowAttention attend = [&](const at::Tensor& q, const std::vector<int64_t>& positions) {
    return attend_rows(layer, weights.scale(), q, positions);
  };
  at::Tensor out = cache_.attention_block(layer, weights, x, rotary, keys_, attend, work);
  ++layers_done_;
  queries_done_ += std::ssize(work.queries);
  if (observer_ != nullptr) {
    const Stopwatch watch(observer_ns_);
    show_keys(layer, work);
  }
  return out;
}

double CanvasSeams::computed_rows() const {
  return layers_done_ == 0 ? 0.0
                           : static_cast<double>(queries_done_) / static_cast<double>(layers_done_);
}

at::Tensor CanvasSeams::attention(const AttentionInput& /*input*/) {
  throw std::logic_error("canvas: attention goes through attention_block");
}

at::Tensor CanvasSeams::ffn(int64_t layer, const at::Tensor& x,
                            const std::function<at::Tensor(const at::Tensor&)>& mlp) {
  return cache_.ffn(layer, x, mlp);
}

at::Tensor CanvasSeams::attend_rows(int64_t layer, double scale, const at::Tensor& q,
                                    const std::vector<int64_t>& positions) {
  const int64_t observer_before = observer_ns_;
  int64_t elapsed = 0;
  at::Tensor out;
  {
    const Stopwatch watch(elapsed);
    const int64_t begin = keys_.block_start();
    const Part block = part_of(positions, begin, begin + keys_.shape().block_length);
    const int64_t behind = block.first + block.count;
    const int64_t rest = static_cast<int64_t>(positions.size()) - behind;
    std::vector<at::Tensor> parts;
    if (block.first > 0) parts.push_back(attend_others(layer, scale, q.narrow(2, 0, block.first)));
    if (block.count > 0) {
      const auto first = positions.begin() + block.first;
      parts.push_back(attend_block(layer, scale, q.narrow(2, block.first, block.count),
                                   {first, first + block.count}));
    }
    if (rest > 0) parts.push_back(attend_others(layer, scale, q.narrow(2, behind, rest)));
    out = parts.size() == 1 ? parts.front() : at::cat(parts, 2);
  }
  attention_ns_ += elapsed - (observer_ns_ - observer_before);
  return out;
}

at::Tensor CanvasSeams::attend_others(int64_t layer, double scale, const at::Tensor& q) const {
  const at::Tensor& k = keys_.all_keys(layer);
  // One block as long as the canvas: every query sees every key.
  return prefill_attention(q, k, keys_.all_values(layer), at::full({1}, k.size(2), at::kLong),
                           k.size(2), scale);
}

at::Tensor CanvasSeams::attend_block(int64_t layer, double scale, const at::Tensor& q,
                                     const std::vector<int64_t>& positions) {
  const at::Tensor k = keys_.block_key(layer);
  const at::Tensor v = keys_.block_value(layer);
  const AttentionInput input{layer, q, k, v, scale};
  const at::Tensor external_key = keys_.external_key(layer);
  const ExternalKeys external{external_key, keys_.external_value(layer),
                              at::full({1}, external_key.size(2), at::kLong)};
  const AttentionParts used = policy_.attend(input, external);
  if (observer_ != nullptr) {
    const Stopwatch watch(observer_ns_);
    show_attention(input, external, used, positions);
  }
  return used.out;
}

void CanvasSeams::show_attention(const AttentionInput& input, const ExternalKeys& external,
                                 const AttentionParts& used,
                                 const std::vector<int64_t>& positions) {
  const auto layer = static_cast<size_t>(input.layer);
  if (seen_.size() <= layer) seen_.resize(layer + 1);
  if (std::ssize(positions) < keys_.shape().block_length) {
    Seen& seen = seen_[layer];
    const at::Tensor rows = at::tensor(positions, at::kLong) - keys_.block_start();
    const int64_t block = keys_.shape().block_length;
    seen.q = with_rows(seen.q, input.q, rows, block);
    AttentionParts& parts = seen.parts;
    parts.out = with_rows(parts.out, used.out, rows, block);
    parts.external = with_rows(parts.external, used.external, rows, block);
    parts.lse_external = with_rows(parts.lse_external, used.lse_external, rows, block);
    parts.internal = with_rows(parts.internal, used.internal, rows, block);
    parts.lse_internal = with_rows(parts.lse_internal, used.lse_internal, rows, block);
    const AttentionInput whole{input.layer, seen.q, input.k, input.v, input.scale};
    observer_->on_attention({*context_, whole, external, parts, &parts});
    return;
  }
  std::optional<AttentionParts> shadow;
  const AttentionParts* exact = used.approximate() ? nullptr : &used;
  if (shadow_ && exact == nullptr) {
    shadow = make_exact_policy()->attend(input, external);
    exact = &*shadow;
  }
  observer_->on_attention({*context_, input, external, used, exact});
  seen_[layer].q = input.q;
  seen_[layer].parts = used;
}

void CanvasSeams::before_layer(int64_t layer, const at::Tensor& hidden) {
  if (observer_ == nullptr) return;
  const Stopwatch watch(observer_ns_);
  const int64_t begin = keys_.block_start();
  const int64_t length = keys_.shape().block_length;
  const Part block = part_of(rows_, begin, begin + length);
  const at::Tensor mine = hidden.narrow(1, block.first, block.count);
  if (block.count == length) {
    observer_->on_hidden(*context_, layer, mine);
    return;
  }
  if (block.count == 0) return;
  if (std::ssize(seen_) <= layer) seen_.resize(static_cast<size_t>(layer) + 1);
  const auto first = rows_.begin() + block.first;
  const std::vector<int64_t> positions(first, first + block.count);
  at::Tensor& seen = seen_[static_cast<size_t>(layer)].hidden;
  seen = with_rows(seen.defined() ? seen.unsqueeze(1) : seen, mine.unsqueeze(1),
                   at::tensor(positions, at::kLong) - begin, length)
             .squeeze(1);
  observer_->on_hidden(*context_, layer, seen);
}

void CanvasSeams::show_keys(int64_t layer, const LayerWork& work) {
  const int64_t begin = keys_.block_start();
  const int64_t end = begin + keys_.shape().block_length;
  const auto outside = [&](int64_t p) { return p < begin || p >= end; };
  if (std::none_of(work.keys.begin(), work.keys.end(), outside)) return;
  const int64_t first = work.keys.front();
  const int64_t count = work.keys.back() + 1 - first;
  observer_->on_committed_keys({context_->sequences.front().sequence, layer, first,
                                keys_.ordered_key(layer).narrow(1, first, count),
                                keys_.ordered_value(layer).narrow(1, first, count)});
}

}  // namespace blockscope
