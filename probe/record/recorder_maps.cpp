// Attention weights themselves, for the layers, heads and steps that --record-maps names, and the
// norms of the keys and values in top-k sets.
#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "decode_record/base/nan.h"
#include "probe/model/device.h"
#include "probe/record/recorder.h"

namespace blockscope {

bool Recorder::records_map(const SequencePass& pass) const {
  return records(pass) && allows(options_.map_steps, pass.step);
}

/// The exact weights, whatever the policy read: softmax over all external keys and the block's.
at::Tensor Recorder::map_of(const AttentionView& view) const {
  const TraceMeta& meta = options_.meta;
  const auto& passes = view.context.sequences;
  const bool wanted =
      std::ranges::binary_search(meta.map_layers, view.input.layer) &&
      std::ranges::any_of(passes, [this](const SequencePass& pass) { return records_map(pass); });
  if (!wanted) return {};
  const AttentionInput& input = view.input;
  const at::Device device = input.q.device();
  const at::Tensor place = at::arange(view.external.key.size(2), at::kLong);
  const at::Tensor missing =
      on_device(place.unsqueeze(0).ge(view.external.length.unsqueeze(1)).unsqueeze(1), device);
  std::vector<at::Tensor> heads;
  for (const int64_t head : meta.map_heads) {  // one at a time, to save memory
    const int64_t of_kv = meta.kv_head_of(input.layer, head);
    const at::Tensor q = input.q.select(1, head).to(at::kFloat);
    const auto scores = [&](const at::Tensor& keys) {
      return at::bmm(q, keys.select(1, of_kv).to(at::kFloat).transpose(1, 2)) * input.scale;
    };
    const at::Tensor external =
        scores(view.external.key).masked_fill(missing, -std::numeric_limits<double>::infinity());
    heads.push_back(at::cat({external, scores(input.k)}, -1).softmax(-1).to(at::kHalf));
  }
  return at::stack(heads, 1);
}

void Recorder::record_map(const SequencePass& pass, const AttentionReads& reads, size_t s) {
  when_on_host(s, {reads.map.select(0, static_cast<int64_t>(s))},
               [this, s, &pass, layer = reads.layer, internal = reads.map_internal](
                   const HostTensors& known) { put_map(pass, s, layer, internal, known[0]); });
}

/// Column p of the file is position p. `from` [heads, T, N + T_in], of which T_in are internal.
void Recorder::put_map(const SequencePass& pass, size_t s, int64_t of_layer, int64_t internal,
                       const at::Tensor& from) {
  const TraceMeta& meta = options_.meta;
  at::Tensor& map = slot_at(s).map;
  if (!map.defined()) {
    map = at::full({std::ssize(meta.map_layers), std::ssize(meta.map_heads), meta.block_length,
                    meta.map_positions},
                   kNaN, at::kHalf);
  }
  const auto layer = std::ranges::find(meta.map_layers, of_layer) - meta.map_layers.begin();
  const at::Tensor to = map.select(0, layer).narrow(1, 0, from.size(1));
  const int64_t count = pass.context_length;
  const int64_t before = keys_before(meta, pass);
  const auto copy = [&](int64_t column, int64_t position, int64_t length) {
    if (length > 0) to.narrow(2, position, length).copy_(from.narrow(2, column, length));
  };
  const int64_t first = meta.first_key(of_layer, count);
  copy(0, first, before - first);
  copy(before - first, before + meta.block_length, count - before);
  copy(from.size(2) - internal, pass.block_start, internal);
}

void Recorder::read_norms(const AttentionView& view, AttentionReads& reads) const {
  const at::Tensor& index = reads.sets.index;
  if (!options_.meta.has_set_norms || !index.defined()) return;
  const auto norms = [&](const at::Tensor& all) {  // [S, K, N, D] -> [S, K, k]
    const at::Tensor places = on_device(index, all.device()).to(at::kLong);
    if (all.size(2) == 0) return at::full_like(places, kNaN, at::kFloat);
    const at::Tensor rows =
        all.gather(2, places.clamp_min(0).unsqueeze(-1).expand({-1, -1, -1, all.size(3)}));
    return rows.to(at::kFloat).norm(2, -1).masked_fill(places.lt(0), kNaN);
  };
  reads.key_norm = norms(view.external.key);
  reads.value_norm = norms(view.external.value);
}

}  // namespace blockscope
