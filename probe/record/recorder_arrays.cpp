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
#include "probe/record/recorder.h"
#include "probe/record/row_copies.h"

namespace blockscope {
namespace {

/// Entry `row` of `all` [S, heads, ...], for the recorded heads only. A layer needs a dozen of
/// these per step, and tensor operators would cost more than the copy.
template <typename Value>
std::vector<Value> heads_of_row(const at::Tensor& all, int64_t row,
                                const std::vector<int64_t>& heads) {
  const at::Tensor dense = all.contiguous();
  const auto size = static_cast<size_t>(dense.stride(1));
  const Value* from = dense.const_data_ptr<Value>() + row * dense.stride(0);
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

void Recorder::put_heads(Slot& slot, Field field, int64_t layer_index,
                         const std::vector<float>& all_heads) {
  std::vector<float> kept;
  for (const int64_t head : options_.meta.heads) {
    kept.push_back(all_heads[static_cast<size_t>(head)]);
  }
  put_floats(slot, field, layer_index, kept.data(), kept.size());
}

void Recorder::put_head_rows(Slot& slot, Field field, int64_t layer_index, const at::Tensor& rows,
                             int64_t row) {
  const std::vector<float> kept = heads_of_row<float>(rows, row, options_.meta.heads);
  put_floats(slot, field, layer_index, kept.data(), kept.size());
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
  RowCopies copies(array_type(), layer_index);
  const auto of_heads = [&](Field field, const at::Tensor& x) {
    copies.add(field, padded_heads(x), row, meta.heads);
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
    copies.add(Field::block_key, padded_kv_heads(reads.k), row, meta.kv_heads);
    copies.add(Field::block_value, padded_kv_heads(reads.v), row, meta.kv_heads);
  }
  copies.run(slot_at(s).arrays);
}

void Recorder::record_selection(const AttentionReads& reads, size_t s, int64_t layer_index) {
  const int64_t row = static_cast<int64_t>(s);
  Slot& slot = slot_at(s);
  const TraceMeta& meta = options_.meta;
  if (meta.selected_size > 0) {
    // -1 throughout: this row read its whole prefix.
    std::vector<int32_t> kept(meta.kv_heads.size() * static_cast<size_t>(meta.selected_size), -1);
    if (reads.used.selected.defined()) {
      const at::Tensor index =
          recorded_kv_heads(of_all_kv_heads(reads.used.selected).select(0, row)).contiguous();
      const auto width = static_cast<size_t>(index.size(1));
      if (index.size(1) > meta.selected_size) {
        throw Error(
            fmt::format("recorder: expected sets of at most {} keys, got {}. HINT: this is a "
                        "fault of the program, please report it",
                        meta.selected_size, index.size(1)));
      }
      for (size_t head = 0; head < meta.kv_heads.size(); ++head) {
        std::copy_n(index.const_data_ptr<int32_t>() + head * width, width,
                    kept.begin() + static_cast<int64_t>(head) * meta.selected_size);
      }
    }
    put_ints(slot, Field::attention_selected, layer_index, kept);
  }
  if (meta.has_residual) {
    put_head_rows(
        slot, Field::attention_lse_residual, layer_index,
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
    const at::Tensor expert =
        choice.expert.select(0, row).gather(-1, order).to(at::kInt).contiguous();
    const at::Tensor values = weight.to(at::kFloat).contiguous();
    const auto* chosen = expert.const_data_ptr<int32_t>();
    put_ints(slot_at(s), Field::router_expert, index, {chosen, chosen + expert.numel()});
    put_floats(slot_at(s), Field::router_weight, index, values.const_data_ptr<float>(),
               static_cast<size_t>(values.numel()));
  }
}

void Recorder::on_staleness(const PassContext& context, const Staleness& of_layers) {
  if (!exists_in(spec_of(Field::shadow_key_cosine), options_.meta)) return;
  if (!records(context.sequences.front())) return;
  Slot& slot = slot_at(0);
  for (int64_t layer = 0; layer < of_layers.key.numel(); ++layer) {
    const int64_t index = layer_index(layer);
    if (index < 0) continue;
    const auto put = [&](Field field, const at::Tensor& cosine) {
      put_floats(slot, field, index, cosine.const_data_ptr<float>() + layer, 1);
    };
    put(Field::shadow_key_cosine, of_layers.key);
    put(Field::shadow_value_cosine, of_layers.value);
    put(Field::shadow_attention_cosine, of_layers.attention);
  }
}

void Recorder::add_revocations(const SequencePass& pass, const StepDecision& decision,
                               TraceRow& row) const {
  const int64_t origin = frame_origin(pass);
  for (const Revocation& one : decision.revoked) {
    row.revoked.push_back({origin + one.position, one.token, one.confidence});
  }
}

void Recorder::record_sets(const PassContext& context, const AttentionReads& reads,
                           int64_t layer_index) {
  const auto k = static_cast<int64_t>(options_.meta.set_size);
  TopKSets sets = reads.sets;
  if (reads.rows.defined() && sets.token_index.defined()) {
    std::vector<int64_t> shape = sets.token_index.sizes().vec();
    shape[2] = options_.meta.block_length;
    sets.token_index = at::full(shape, -1, sets.token_index.options())
                           .index_copy_(2, reads.rows, sets.token_index);
  }
  for (size_t s = 0; s < context.sequences.size(); ++s) {
    const SequencePass& pass = context.sequences[s];
    if (pass.kind != PassKind::denoise || !traced(pass)) continue;
    const int64_t row = static_cast<int64_t>(s);
    Slot& slot = slot_at(s);
    const auto ints = [&](const at::Tensor& values) {
      return heads_of_row<int32_t>(of_all_kv_heads(values), row, options_.meta.kv_heads);
    };
    const auto floats = [&](const at::Tensor& values) {
      return heads_of_row<float>(of_all_kv_heads(values), row, options_.meta.kv_heads);
    };
    const std::vector<int32_t> index = ints(sets.index);
    put_ints(slot, Field::set_topk, layer_index, index);
    put_ints(slot, Field::set_union_size, layer_index, ints(sets.union_size));
    const std::vector<float> probability = floats(sets.probability);
    put_floats(slot, Field::set_probability, layer_index, probability.data(), probability.size());
    for (const auto& [field, norms] : {std::pair{Field::set_key_norm, &reads.key_norm},
                                       std::pair{Field::set_value_norm, &reads.value_norm}}) {
      if (!norms->defined()) continue;
      const std::vector<float> kept = floats(*norms);
      put_floats(slot, field, layer_index, kept.data(), kept.size());
    }
    std::vector<float> covered;
    for (auto of_head = probability.begin(); of_head != probability.end(); of_head += k) {
      covered.push_back(static_cast<float>(std::accumulate(of_head, of_head + k, 0.0)));
    }
    put_floats(slot, Field::set_covered, layer_index, covered.data(), covered.size());
    record_recall(pass, slot, history_of(slot, layer_index, pass), reads.layer, index);
    if (records(pass) && at_least(RecordLevel::full)) {
      slot.arrays.push_back(
          {Field::set_topk_token, layer_index, make_buffer(ints(sets.token_index))});
    }
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

void Recorder::put_reuse_error(Slot& slot, int64_t layer_index, const LayerStatistics& statistics) {
  const size_t layers = options_.meta.layers.size();
  const size_t heads = options_.meta.heads.size();
  auto& out = slot.floats[Field::reuse_error];  // [tau, layer, head, sum]
  out.resize(kReuseTaus.size() * layers * heads * 4, kNaN);
  for (size_t t = 0; t < kReuseTaus.size(); ++t) {
    for (size_t h = 0; h < heads; ++h) {
      const ErrorSums& sum = statistics.reuse_error[t][static_cast<size_t>(options_.meta.heads[h])];
      float* cell = &out[((t * layers + static_cast<size_t>(layer_index)) * heads + h) * 4];
      cell[0] = static_cast<float>(sum.squared);
      cell[1] = static_cast<float>(sum.absolute);
      cell[2] = static_cast<float>(sum.reference);
      cell[3] = static_cast<float>(sum.dot);
    }
  }
}

void Recorder::put_kept(Slot& slot, int64_t layer_index, const LayerStatistics& statistics) {
  const size_t layers = options_.meta.layers.size();
  const size_t heads = options_.meta.heads.size();
  constexpr size_t kSums = kRowKinds.size() * kKeptSums;
  auto& out = slot.floats[Field::kept_pair];  // [tau, layer, head, kind, sum]
  out.resize(kReuseTaus.size() * layers * heads * kSums, kNaN);
  for (size_t t = 0; t < statistics.kept.size(); ++t) {
    if (statistics.kept[t].empty()) continue;  // the rule reads at this step
    for (size_t h = 0; h < heads; ++h) {
      float* cell = &out[((t * layers + static_cast<size_t>(layer_index)) * heads + h) * kSums];
      for (const KeptSums& sums : statistics.kept[t][static_cast<size_t>(options_.meta.heads[h])]) {
        for (const double sum : {sums.rows, sums.cosine, sums.lse, sums.squared, sums.reference}) {
          *cell++ = static_cast<float>(sum);
        }
      }
    }
  }
}

}  // namespace blockscope
