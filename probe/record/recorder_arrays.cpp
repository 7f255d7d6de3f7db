// The recorder's copies: they select the recorded heads and use the file's layout.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>

#include "decode_record/base/error.h"
#include "decode_record/base/nan.h"
#include "probe/model/device.h"
#include "probe/record/recorder.h"
#include "probe/record/row_copies.h"

namespace blockscope {
namespace {

/// The recorded heads of `all` [heads, ...] of the host. A layer needs a dozen of these per step,
/// and tensor operators would cost more than the copy.
template <typename Value>
std::vector<Value> recorded_of(const at::Tensor& all, const std::vector<int64_t>& heads) {
  const at::Tensor dense = all.contiguous();
  const auto size = static_cast<size_t>(dense.numel() / dense.size(0));
  const Value* from = dense.const_data_ptr<Value>();
  std::vector<Value> kept(heads.size() * size);
  for (size_t i = 0; i < heads.size(); ++i) {
    std::copy_n(from + static_cast<size_t>(heads[i]) * size, size, kept.data() + i * size);
  }
  return kept;
}

}  // namespace

at::Tensor Recorder::padded(const at::Tensor& x, int64_t heads, int64_t channels) const {
  const int64_t more_heads = heads - x.size(1);
  const int64_t more_channels = channels == 0 ? 0 : channels - x.size(-1);
  if (more_heads == 0 && more_channels == 0) return x;
  std::vector<int64_t> pad(static_cast<size_t>(2 * (x.dim() - 1)), 0);  // from the last axis on
  pad[1] = more_channels;
  pad.back() = more_heads;
  return x.is_floating_point() ? at::constant_pad_nd(x, pad, kNaN)
                               : at::constant_pad_nd(x, pad, -1);
}

at::Tensor Recorder::padded_heads(const at::Tensor& x) const {
  return padded(x, x.size(1), options_.meta.channels());
}

at::Tensor Recorder::padded_kv_heads(const at::Tensor& x) const {
  return padded(x, options_.meta.num_kv_heads, options_.meta.channels());
}

at::Tensor Recorder::of_all_kv_heads(const at::Tensor& x) const {
  return padded(x, options_.meta.num_kv_heads, 0);
}

at::Tensor Recorder::recorded_heads(const at::Tensor& rows) const {
  return heads_.defined() ? rows.index_select(0, heads_) : rows;
}

at::Tensor Recorder::recorded_kv_heads(const at::Tensor& rows) const {
  return kv_heads_.defined() ? rows.index_select(0, kv_heads_) : rows;
}

void Recorder::put_floats(Slot& slot, Field field, int64_t layer_index, const float* values,
                          size_t count) {
  auto& out = slot.floats[field];
  out.resize(options_.meta.layers.size() * count, kNaN);
  std::copy_n(values, count, out.begin() + layer_index * static_cast<int64_t>(count));
}

void Recorder::put_heads(size_t s, Field field, int64_t layer_index, const at::Tensor& values) {
  if (!values.defined()) return;
  when_on_host(s, {values}, [=, this](const HostTensors& known) {
    const std::vector<float> kept = recorded_of<float>(known[0], options_.meta.heads);
    put_floats(slot_at(s), field, layer_index, kept.data(), kept.size());
  });
}

void Recorder::put_head_rows(size_t s, Field field, int64_t layer_index, const at::Tensor& rows,
                             int64_t row) {
  put_heads(s, field, layer_index, rows.select(0, row));
}

void Recorder::put_sums(size_t s, Field field, int64_t layer_index, const at::Tensor& sums) {
  if (!sums.defined() || sums.size(0) == 0) return;
  when_on_host(s, {sums}, [=, this](const HostTensors& known) {
    const TraceMeta& meta = options_.meta;
    const auto count =
        static_cast<size_t>(known[0].numel() / (known[0].size(0) * known[0].size(1)));
    const size_t of_layer = meta.heads.size() * count;
    const auto taus = static_cast<size_t>(known[0].size(0));
    auto& out = slot_at(s).floats[field];  // [tau, layer, head, sum]
    out.resize(taus * meta.layers.size() * of_layer, kNaN);
    for (size_t t = 0; t < taus; ++t) {
      const std::vector<float> kept =
          recorded_of<float>(known[0].select(0, static_cast<int64_t>(t)), meta.heads);
      std::ranges::copy(
          kept, out.begin() +
                    static_cast<std::ptrdiff_t>(
                        (t * meta.layers.size() + static_cast<size_t>(layer_index)) * of_layer));
    }
  });
}

void Recorder::put_ints(Slot& slot, Field field, int64_t layer_index,
                        const std::vector<int32_t>& values) {
  auto& out = slot.ints[field];
  out.resize(options_.meta.layers.size() * values.size(), -1);
  std::copy(values.begin(), values.end(),
            out.begin() + layer_index * static_cast<int64_t>(values.size()));
}

void Recorder::record_arrays(const AttentionReads& reads, size_t s, int64_t layer_index) {
  const auto row = static_cast<int64_t>(s);
  const TraceMeta& meta = options_.meta;
  RowCopies copies(array_type(), layer_index);  // of the host's tensors, made together
  const auto add = [&](Field field, const at::Tensor& x, const std::vector<int64_t>& heads) {
    if (x.is_cpu()) return copies.add(field, x, row, heads);
    put_array(s, field, layer_index, x, row, heads);
  };
  const auto of_heads = [&](Field field, const at::Tensor& x) {
    add(field, padded_heads(x), meta.heads);
  };
  of_heads(Field::attention_external, reads.used.external);
  of_heads(Field::attention_internal, reads.used.internal);
  if (meta.has_residual) {
    of_heads(Field::attention_residual, reads.used.residual.defined()
                                            ? reads.used.residual
                                            : at::zeros_like(reads.used.external));
  }
  of_heads(Field::query, reads.q);
  if (meta.has_shadow && reads.exact() != nullptr) {
    of_heads(Field::shadow_external, reads.exact()->external);
  }
  if (at_least(RecordLevel::full)) {
    add(Field::block_key, padded_kv_heads(reads.k), meta.kv_heads);
    add(Field::block_value, padded_kv_heads(reads.v), meta.kv_heads);
  }
  copies.run(slot_at(s).arrays);
}

void Recorder::record_selection(const AttentionReads& reads, size_t s, int64_t layer_index) {
  const int64_t row = static_cast<int64_t>(s);
  const TraceMeta& meta = options_.meta;
  if (meta.selected_size > 0) {
    at::Tensor selected;
    if (reads.used.selected.defined()) {
      selected = of_all_kv_heads(reads.used.selected).select(0, row);
    }
    when_on_host(s, {selected}, [=, this](const HostTensors& known) {
      const auto most = static_cast<size_t>(options_.meta.selected_size);
      const size_t heads = options_.meta.kv_heads.size();
      // -1 throughout: this row read its whole prefix.
      std::vector<int32_t> kept(heads * most, -1);
      if (known[0].defined()) {
        const std::vector<int32_t> index = recorded_of<int32_t>(known[0], options_.meta.kv_heads);
        const size_t width = index.size() / heads;
        if (width > most) {
          throw Error(
              fmt::format("recorder: expected sets of at most {} keys, got {}. HINT: this is a "
                          "fault of the program, please report it",
                          most, width));
        }
        for (size_t head = 0; head < heads; ++head) {
          std::copy_n(index.begin() + static_cast<std::ptrdiff_t>(head * width), width,
                      kept.begin() + static_cast<std::ptrdiff_t>(head * most));
        }
      }
      put_ints(slot_at(s), Field::attention_selected, layer_index, kept);
    });
  }
  if (meta.has_residual) {
    put_head_rows(
        s, Field::attention_lse_residual, layer_index,
        reads.used.lse_residual.defined()
            ? reads.used.lse_residual
            : at::full_like(reads.used.lse_external, -std::numeric_limits<float>::infinity()),
        row);
  }
}

void Recorder::on_router(const PassContext& context, int64_t layer, const RouterChoice& choice) {
  if (!reads_router(context, layer)) return;
  const int64_t index = layer_index(layer);
  for (size_t s = 0; s < context.sequences.size(); ++s) {
    if (!records(context.sequences[s])) continue;
    const auto row = static_cast<int64_t>(s);
    const auto [weight, order] = choice.weight.select(0, row).sort(/*stable=*/true, -1, true);
    const at::Tensor expert = choice.expert.select(0, row).gather(-1, order).to(at::kInt);
    when_on_host(s, {expert, weight.to(at::kFloat)}, [=, this](const HostTensors& known) {
      const auto* chosen = known[0].const_data_ptr<int32_t>();
      put_ints(slot_at(s), Field::router_expert, index, {chosen, chosen + known[0].numel()});
      put_floats(slot_at(s), Field::router_weight, index, known[1].const_data_ptr<float>(),
                 static_cast<size_t>(known[1].numel()));
    });
  }
}

void Recorder::on_staleness(const PassContext& context, const Staleness& of_layers) {
  if (!exists_in(spec_of(Field::shadow_key_cosine), options_.meta)) return;
  if (!records(context.sequences.front())) return;
  when_on_host(0, {of_layers.key, of_layers.value, of_layers.attention},
               [this](const HostTensors& cosines) {
                 constexpr Field kFields[] = {Field::shadow_key_cosine, Field::shadow_value_cosine,
                                              Field::shadow_attention_cosine};
                 for (int64_t layer = 0; layer < cosines[0].numel(); ++layer) {
                   const int64_t index = layer_index(layer);
                   if (index < 0) continue;
                   for (size_t i = 0; i < cosines.size(); ++i) {
                     put_floats(slot_at(0), kFields[i], index,
                                cosines[i].const_data_ptr<float>() + layer, 1);
                   }
                 }
               });
}

void Recorder::add_revocations(const SequencePass& pass, const StepDecision& decision,
                               TraceRow& row) const {
  const int64_t origin = frame_origin(pass);
  for (const Revocation& one : decision.revoked) {
    row.revoked.push_back({origin + one.position, one.token, one.confidence});
  }
}

void Recorder::record_sets(const PassContext& context, const AttentionReads& reads) {
  TopKSets sets = reads.sets;
  if (reads.rows.defined() && sets.token_index.defined()) {
    std::vector<int64_t> shape = sets.token_index.sizes().vec();
    shape[2] = options_.meta.block_length;
    sets.token_index =
        at::full(shape, -1, sets.token_index.options())
            .index_copy_(2, on_device(reads.rows, sets.token_index.device()), sets.token_index);
  }
  for (size_t s = 0; s < context.sequences.size(); ++s) {
    const SequencePass& pass = context.sequences[s];
    if (pass.kind != PassKind::denoise || !traced(pass)) continue;
    const auto of_sequence = [&](const at::Tensor& values) {
      return values.defined() ? of_all_kv_heads(values).select(0, static_cast<int64_t>(s)) : values;
    };
    const bool tokens = records(pass) && at_least(RecordLevel::full);
    when_on_host(
        s,
        {of_sequence(sets.index), of_sequence(sets.union_size), of_sequence(sets.probability),
         of_sequence(reads.key_norm), of_sequence(reads.value_norm),
         tokens ? of_sequence(sets.token_index) : at::Tensor()},
        [this, s, &pass, layer = reads.layer](const HostTensors& known) {
          put_sets(pass, s, layer, known);
        });
  }
}

void Recorder::put_sets(const SequencePass& pass, size_t s, int64_t layer,
                        const HostTensors& sets) {
  const auto k = static_cast<int64_t>(options_.meta.set_size);
  const int64_t layer_index = this->layer_index(layer);
  Slot& slot = slot_at(s);
  const auto ints = [&](const at::Tensor& values) {
    return recorded_of<int32_t>(values, options_.meta.kv_heads);
  };
  const auto put_floats_of = [&](Field field, const std::vector<float>& values) {
    put_floats(slot, field, layer_index, values.data(), values.size());
  };
  const std::vector<int32_t> index = ints(sets[0]);
  put_ints(slot, Field::set_topk, layer_index, index);
  put_ints(slot, Field::set_union_size, layer_index, ints(sets[1]));
  const std::vector<float> probability = recorded_of<float>(sets[2], options_.meta.kv_heads);
  put_floats_of(Field::set_probability, probability);
  for (const auto& [field, norms] :
       {std::pair{Field::set_key_norm, &sets[3]}, std::pair{Field::set_value_norm, &sets[4]}}) {
    if (norms->defined()) put_floats_of(field, recorded_of<float>(*norms, options_.meta.kv_heads));
  }
  std::vector<float> covered;
  for (auto of_head = probability.begin(); of_head != probability.end(); of_head += k) {
    covered.push_back(static_cast<float>(std::accumulate(of_head, of_head + k, 0.0)));
  }
  put_floats_of(Field::set_covered, covered);
  record_recall(pass, slot, history_of(slot, layer_index, pass), layer, index);
  if (sets[5].defined()) {
    slot.arrays.push_back({Field::set_topk_token, layer_index, make_buffer(ints(sets[5]))});
  }
}

void Recorder::record_recall(const SequencePass& pass, Slot& slot, LayerHistory& history,
                             int64_t layer, const std::vector<int32_t>& index) {
  const TraceMeta& meta = options_.meta;
  const auto k = static_cast<int64_t>(meta.set_size);
  if (pass.first_step()) {
    history.first_set = index;
    for (auto of_head = history.first_set.begin(); of_head != history.first_set.end();
         of_head += k) {
      std::sort(of_head, of_head + k);
    }
  }
  // With N <= k every key is in the set, so the recall would say nothing.
  if (pass.first_step() || meta.external_keys(layer, pass.context_length) <= k ||
      history.first_set.size() != index.size()) {
    return;
  }
  std::vector<float> recall;
  for (int64_t begin = 0; begin < std::ssize(index); begin += k) {
    const auto first = history.first_set.begin() + begin;
    const auto now = index.begin() + begin;
    const int64_t kept = std::count_if(
        now, now + k, [&](int32_t p) { return std::binary_search(first, first + k, p); });
    const bool exists = meta.kv_heads[recall.size()] < meta.kv_heads_of(layer);
    recall.push_back(exists ? static_cast<float>(kept) / static_cast<float>(k) : kNaN);
  }
  put_floats(slot, Field::set_recall, layer_index(layer), recall.data(), recall.size());
}

}  // namespace blockscope
