#include "probe/decode/canvas_seams.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "decode_record/base/nan.h"
#include "kernels/ops.h"
#include "kernels/torch/fallback_operators.h"
#include "probe/decode/block_rows.h"
#include "probe/decode/shadow_block.h"
#include "probe/model/stopwatch.h"

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

}  // namespace

CanvasSeams::CanvasSeams(AttentionPolicy& policy, CanvasCache& cache, CanvasKeys& keys,
                         Watcher& watcher, bool shadow)
    : ObservedSeams(watcher, shadow), policy_(policy), cache_(cache), keys_(keys) {}

void CanvasSeams::begin_pass(const PassContext& context, const std::vector<int64_t>& rows,
                             int64_t shadow_rows, std::optional<at::Tensor> needed) {
  begin(&context, looks_inside(&context));
  rows_ = rows;
  shadow_rows_ = shadow_rows;
  needed_ = std::move(needed);
  policy_.begin_pass(context);
}

void CanvasSeams::end_pass() {
  {
    const Stopwatch watch(attention_ns_);  // waits for work that ran in parallel with the layers
    policy_.end_pass();
  }
  cache_.end_pass();
  watcher_.show([&](DecodeObserver& observer) { show_keys(observer); });
}

at::Tensor CanvasSeams::attention_block(int64_t layer, const AttentionLayer& weights,
                                        const at::Tensor& x, const RotaryRows& rotary) {
  LayerWork work;
  const RowAttention attend = [&](const at::Tensor& q, const CanvasRows& attending) {
    return attend_rows(layer, weights.scale(), q, attending);
  };
  if (layer == 0) trail_ = std::make_shared<Trail>();
  trail_->outputs.emplace_back();
  const int64_t rows = std::ssize(rows_);
  at::Tensor out;
  if (shadow_rows_ == 0) {
    const bool last = layer + 1 == keys_.shape().num_layers;
    const at::Tensor* needed = last && needed_ ? &*needed_ : nullptr;
    out = cache_.attention_block(layer, weights, x, rotary, keys_, attend, needed, work);
  } else {
    const at::Tensor canvas = cache_.attention_block(layer, weights, x.narrow(1, 0, rows),
                                                     rotary.rows(at::arange(rows, at::kLong)),
                                                     keys_, attend, nullptr, work);
    const at::Tensor shadow =
        shadow_attention(layer, weights, x.narrow(1, rows, shadow_rows_),
                         rotary.rows(at::arange(rows, rows + shadow_rows_, at::kLong)), keys_);
    out = at::cat({canvas, shadow}, 1);
  }
  trail_->work.push_back(std::move(work));
  return out;
}

double CanvasSeams::computed_rows() const {
  int64_t queries = 0;
  for (const LayerWork& work : trail_->work) queries += work.num_queries();
  if (trail_->work.empty()) return 0.0;
  return static_cast<double>(queries) / static_cast<double>(trail_->work.size()) +
         static_cast<double>(shadow_rows_);
}

at::Tensor CanvasSeams::attention(const AttentionInput& /*input*/) {
  throw std::logic_error("canvas: attention goes through attention_block");
}

at::Tensor CanvasSeams::ffn(int64_t layer, const at::Tensor& x,
                            const std::function<at::Tensor(const at::Tensor&)>& mlp) {
  return cache_.ffn(layer, x, mlp);
}

at::Tensor CanvasSeams::attend_rows(int64_t layer, double scale, const at::Tensor& q,
                                    const CanvasRows& rows) {
  const UnwatchedStopwatch watch(attention_ns_, watcher_);
  return rows.chosen.defined() ? attend_chosen(layer, scale, q, rows)
                               : attend_known(layer, scale, q, rows.known);
}

at::Tensor CanvasSeams::attend_known(int64_t layer, double scale, const at::Tensor& q,
                                     const std::vector<int64_t>& positions) {
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
  return parts.size() == 1 ? parts.front() : at::cat(parts, 2);
}

/// The host does not know how many of the chosen rows are the block's, so those rows are computed
/// twice: as canvas rows and as block rows. The block is computed as a whole under the policy; any
/// row takes the place of a position that was not chosen. This is right for policies that treat
/// each row alone, and a cache that chooses single rows accepts no others.
at::Tensor CanvasSeams::attend_chosen(int64_t layer, double scale, const at::Tensor& q,
                                      const CanvasRows& rows) {
  const int64_t length = keys_.shape().block_length;
  const auto known = std::ssize(rows.known);
  const int64_t count = rows.chosen.numel();
  if (known > 0 && rows.known.back() >= keys_.block_start()) {
    throw std::logic_error("canvas: expected the device to choose all rows of the block");
  }
  const at::Tensor others = attend_others(layer, scale, q);
  const at::Tensor place = rows.chosen - keys_.block_start();
  const at::Tensor inside = place.ge(0).logical_and(place.lt(length));
  const at::Tensor slot = at::where(inside, place, length);  // `length`: not in the block
  const at::Tensor row =
      at::full({length + 1}, known, slot.options())
          .index_copy_(0, slot, at::arange(known, known + count, slot.options()));
  const at::Tensor present =
      at::zeros({length + 1}, slot.options().dtype(at::kBool)).index_fill_(0, slot, 1);
  std::vector<int64_t> positions(static_cast<size_t>(length));
  std::iota(positions.begin(), positions.end(), keys_.block_start());
  const at::Tensor block = attend_block(layer, scale, q.index_select(2, row.narrow(0, 0, length)),
                                        positions, present.narrow(0, 0, length));
  const at::Tensor chosen =
      at::where(inside.view({1, 1, count, 1}), block.index_select(2, slot.clamp_max(length - 1)),
                others.narrow(2, known, count));
  return known == 0 ? chosen : at::cat({others.narrow(2, 0, known), chosen}, 2);
}

at::Tensor CanvasSeams::attend_others(int64_t layer, double scale, const at::Tensor& q) const {
  const at::Tensor& k = keys_.all_keys(layer);
  // One block as long as the canvas: every query sees every key.
  return prefill_attention(q, k, keys_.all_values(layer), at::full({1}, k.size(2), at::kLong),
                           k.size(2), scale);
}

at::Tensor CanvasSeams::attend_block(int64_t layer, double scale, const at::Tensor& q,
                                     const std::vector<int64_t>& positions,
                                     const at::Tensor& present) {
  const at::Tensor k = keys_.block_key(layer);
  const at::Tensor v = keys_.block_value(layer);
  AttentionInput input{layer, q, k, v, scale};
  // If only a device knows the rows, show_present() fills the spread.
  if (!present.defined()) input.spread = wanted_spread(layer, places(positions));
  const at::Tensor external_key = keys_.external_key(layer);
  const ExternalKeys external{external_key, keys_.external_value(layer),
                              at::full({1}, external_key.size(2), at::kLong)};
  const AttentionParts used = policy_.attend(input, external);
  if (shadow_) trail_->outputs.back() = {positions, used.out, present};
  const int64_t length = keys_.shape().block_length;
  if (present.defined()) {
    show_present(input, external, used, present);
  } else if (std::ssize(positions) == length) {
    show_attention(input, external, used);
  } else {
    show_attention(input, external, used, places(positions), length);
  }
  return used.out;
}

void CanvasSeams::show_present(const AttentionInput& input, const ExternalKeys& external,
                               const AttentionParts& used, const at::Tensor& present) {
  show_call([&] {
    WeightSpread* const spread = wanted_spread(input.layer);
    if (spread != nullptr) {
      fallback::fill_spread(input.q, external.key, external.length, input.k, input.scale,
                            {.rows = present}, *spread);
    }
    const at::Tensor q = where_present(input.q, present);
    ShownAttention shown({input.layer, q, input.k, input.v, input.scale, false, spread}, external,
                         where_present(used, present));
    shown.present = present;
    return shown;
  });
}

at::Tensor CanvasSeams::places(const std::vector<int64_t>& positions) const {
  return at::tensor(positions, at::kLong) - keys_.block_start();
}

at::Tensor CanvasSeams::patched_hidden(int64_t layer, const at::Tensor& hidden) {
  const int64_t begin = keys_.block_start();
  const Part block = part_of(rows_, begin, begin + keys_.shape().block_length);
  if (block.count == 0) return {};
  const auto first = rows_.begin() + block.first;
  const at::Tensor rows = policy_.patched_hidden(layer, hidden.narrow(1, block.first, block.count),
                                                 places({first, first + block.count}));
  if (!rows.defined()) return {};
  at::Tensor patched = hidden.clone();
  patched.narrow(1, block.first, block.count).copy_(rows);
  return patched;
}

at::Tensor CanvasSeams::shown_rows(const at::Tensor& hidden) const {
  const int64_t begin = keys_.block_start();
  const int64_t length = keys_.shape().block_length;
  const Part block = part_of(rows_, begin, begin + length);
  if (block.count == 0) return {};
  const auto first = rows_.begin() + block.first;
  return among_block(hidden.narrow(1, block.first, block.count), 1,
                     places({first, first + block.count}), length, kNaN);
}

/// A trace has one list of positions for all layers: those that any layer wrote. Keys that a device
/// chose lie in the range of the values that the host knows.
void CanvasSeams::show_keys(DecodeObserver& observer) const {
  const int64_t begin = keys_.block_start();
  const int64_t end = begin + keys_.shape().block_length;
  int64_t first = begin;
  int64_t last = end;
  for (const LayerWork& work : trail_->work) {
    for (const std::vector<int64_t>* written : {&work.keys, &work.values}) {
      if (written->empty()) continue;
      first = std::min(first, written->front());
      last = std::max(last, written->back() + 1);
    }
  }
  if (first == begin && last == end) return;
  for (int64_t layer = 0; layer < std::ssize(trail_->work); ++layer) {
    observer.on_committed_keys({context_->sequences.front().sequence, layer, first,
                                keys_.ordered_key(layer).narrow(1, first, last - first),
                                keys_.ordered_value(layer).narrow(1, first, last - first)});
  }
}

}  // namespace blockscope
