#include "probe/record/recorder.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "probe/model/device.h"
#include "probe/model/host_copies.h"
#include "probe/record/row_copies.h"

namespace blockscope {
namespace {

/// A slot's results on a device are copied when they take this much memory, and after every pass.
constexpr int64_t kMostPendingBytes = int64_t{32} << 20;

/// A buffer that keeps the tensor alive; contiguous, already in the file's type.
Buffer buffer_of(const at::Tensor& tensor) {
  auto owner = std::make_shared<at::Tensor>(tensor.contiguous());
  const void* data = owner->const_data_ptr();
  const size_t size = static_cast<size_t>(owner->nbytes());
  return Buffer{std::move(owner), data, size};
}

/// The positions of a layer's work, including those that a device chose.
std::vector<PositionRange> ranges_with(std::vector<int64_t> known, const at::Tensor& chosen) {
  if (chosen.defined()) {
    const at::Tensor places = on_host(chosen);
    const auto* first = places.const_data_ptr<int64_t>();
    known.insert(known.end(), first, first + places.numel());
  }
  return ranges_of(known);
}

at::Tensor index_of(const std::vector<int64_t>& recorded, int64_t all) {
  return static_cast<int64_t>(recorded.size()) == all ? at::Tensor()
                                                      : at::tensor(recorded, at::kLong);
}

}  // namespace

Recorder::Recorder(RecorderOptions options, TraceWriter& writer)
    : options_(std::move(options)), writer_(writer) {
  const TraceMeta& meta = options_.meta;
  layer_indices_.assign(static_cast<size_t>(meta.num_layers), -1);
  for (size_t i = 0; i < meta.layers.size(); ++i) {
    layer_indices_[static_cast<size_t>(meta.layers[i])] = static_cast<int64_t>(i);
  }
  heads_ = index_of(meta.heads, meta.num_heads);
  kv_heads_ = index_of(meta.kv_heads, meta.num_kv_heads);
}

void Recorder::begin_sequence(int64_t sequence, int64_t trace_sequence, int64_t prompt_length,
                              std::vector<uint8_t> regions) {
  traced_[sequence] = {trace_sequence, prompt_length, std::move(regions),
                       make_initial_frame({}, 0, options_.meta.mask_token_id)};
}

bool Recorder::records(const SequencePass& pass) const {
  const RecordFilter& filter = options_.filter;
  return pass.kind == PassKind::denoise && traced(pass) && allows(filter.steps, pass.step) &&
         allows(filter.blocks, pass.block) && allows(filter.sequences, pass.sequence);
}

int64_t Recorder::layer_index(int64_t layer) const {
  return layer_indices_[static_cast<size_t>(layer)];
}

HeadShape Recorder::head_shape(int64_t layer) const {
  const TraceMeta& meta = options_.meta;
  return {meta.num_heads, meta.block_length, meta.head_dim_of(layer)};
}

Recorder::Slot& Recorder::slot_at(size_t index) {
  if (slots_.size() <= index) slots_.resize(index + 1);
  slots_[index].history.resize(options_.meta.layers.size());
  return slots_[index];
}

Recorder::LayerHistory& Recorder::history_of(Slot& slot, int64_t layer_index,
                                             const SequencePass& pass) {
  LayerHistory& history = slot.history[static_cast<size_t>(layer_index)];
  if (history.sequence != pass.sequence || history.block != pass.block) {
    history = {};
    history.sequence = pass.sequence;
    history.block = pass.block;
  }
  return history;
}

void Recorder::when_on_host(size_t s, HostTensors results,
                            std::function<void(const HostTensors&)> put) {
  int64_t bytes = 0;
  for (at::Tensor& result : results) {
    if (!result.defined()) continue;
    result = result.contiguous();
    if (!result.is_cpu()) bytes += static_cast<int64_t>(result.nbytes());
  }
  if (bytes == 0) return put(results);
  Slot& slot = slot_at(s);
  slot.pending.push_back({std::move(results), std::move(put)});
  slot.pending_bytes += bytes;
  if (slot.pending_bytes >= kMostPendingBytes) put_pending(slot);
}

void Recorder::put_array(size_t s, Field field, int64_t layer_index, const at::Tensor& x,
                         int64_t row, const std::vector<int64_t>& heads) {
  if (x.is_cpu()) {
    RowCopies copies(array_type(), layer_index);
    copies.add(field, x, row, heads);
    copies.run(slot_at(s).arrays);
    return;
  }
  at::Tensor rows = x.select(0, row);
  if (std::ssize(heads) != rows.size(0)) {
    rows = rows.index_select(0, index_on(heads, rows.device()));
  }
  when_on_host(s, {rows.to(array_type())}, [=, this](const HostTensors& known) {
    slot_at(s).arrays.push_back({field, layer_index, buffer_of(known[0])});
  });
}

void Recorder::put_pending(Slot& slot) {
  if (slot.pending.empty()) return;
  // A copy costs as much as a kernel, so all results of a type become one.
  std::map<at::ScalarType, std::vector<at::Tensor>> parts;
  for (const Pending& one : slot.pending) {
    for (const at::Tensor& result : one.results) {
      if (result.defined() && !result.is_cpu()) {
        parts[result.scalar_type()].push_back(result.flatten());
      }
    }
  }
  std::vector<at::Tensor> whole;
  for (const auto& [type, flat] : parts) whole.push_back(at::cat(flat));
  HostCopies copies(whole);
  const std::vector<at::Tensor>& hosts = copies.wait();
  slot.in_use.clear();
  std::map<at::ScalarType, int64_t> next;
  const auto on_host = [&](const at::Tensor& result) {
    if (!result.defined() || result.is_cpu()) return result;
    const at::ScalarType type = result.scalar_type();
    const auto at = static_cast<size_t>(std::distance(parts.begin(), parts.find(type)));
    const int64_t begin = std::exchange(next[type], next[type] + result.numel());
    return hosts[at].narrow(0, begin, result.numel()).view(result.sizes());
  };
  for (const Pending& one : std::exchange(slot.pending, {})) {
    HostTensors results;
    std::ranges::transform(one.results, std::back_inserter(results), on_host);
    one.put(results);
  }
  slot.pending_bytes = 0;
}

void Recorder::on_attention(const AttentionView& view) {
  if (reads_layer(view.context, view.input.layer)) record(view.context, reads_of(view));
}

void Recorder::record(const PassContext& context, const AttentionReads& reads) {
  if (reads.present.defined()) {
    if (const auto known = reads.rows_known()) record(context, *known);
    return;
  }
  const int64_t index = layer_index(reads.layer);
  for (size_t s = 0; s < context.sequences.size(); ++s) {
    const SequencePass& pass = context.sequences[s];
    // Rows outside the step filter are read too, because later rows are compared with them.
    if (pass.kind != PassKind::denoise || !traced(pass)) continue;
    summarise(pass, reads, s, index);
    if (records(pass) && at_least(RecordLevel::outputs)) record_arrays(reads, s, index);
    if (reads.map.defined() && records_map(pass)) record_map(pass, reads, s);
  }
  if (reads.sets.index.defined()) record_sets(context, reads);
}

void Recorder::summarise(const SequencePass& pass, const AttentionReads& reads, size_t s,
                         int64_t layer_index) {
  const int64_t row = static_cast<int64_t>(s);
  LayerHistory& history = history_of(slot_at(s), layer_index, pass);
  const AttentionParts& used = reads.used;
  put_head_rows(s, Field::attention_lse_external, layer_index, used.lse_external, row);
  put_head_rows(s, Field::attention_lse_internal, layer_index, used.lse_internal, row);
  const auto put_flags = [&](Field field, const at::Tensor& flags) {  // [S, H] bool
    if (!flags.defined()) return;
    when_on_host(s, {flags.select(0, row).to(at::kByte)}, [=, this](const HostTensors& known) {
      const at::Tensor kept = recorded_heads(known[0]).contiguous();
      const size_t heads = options_.meta.heads.size();
      auto& out = slot_at(s).bytes[field];
      out.resize(options_.meta.layers.size() * heads, 0);
      std::copy_n(kept.const_data_ptr<uint8_t>(), heads,
                  out.begin() + layer_index * static_cast<int64_t>(heads));
    });
  };
  put_flags(Field::attention_reused, used.reused);
  if (options_.meta.has_interventions) put_flags(Field::attention_intervened, used.intervened);
  record_selection(reads, s, layer_index);
  record_spread(pass, reads, s, layer_index);
  LayerStep step;
  compare_queries(pass, reads.q, row, history, step);
  if (const AttentionParts* exact = reads.exact()) {
    if (options_.meta.has_shadow) record_shadow(reads, s, layer_index);
    step.external = HeadAttention(exact->external, exact->lse_external, row);
    step.internal = HeadAttention(exact->internal, exact->lse_internal, row);
    compare_steps(pass, history, step);
  }
  put_statistics(layer_statistics(step, head_shape(reads.layer)), s, layer_index);
  if (!reads.q.is_cpu()) slot_at(s).in_use.push_back(std::move(step));
}

void Recorder::compare_queries(const SequencePass& pass, const at::Tensor& query, int64_t row,
                               LayerHistory& history, LayerStep& step) {
  if (pass.first_step()) {
    history.first_query = FirstRows(query, row);
  } else if (history.first_query.like(query)) {
    step.query = query;
    step.row = row;
    step.first_query = &history.first_query;
  }
}

void Recorder::compare_steps(const SequencePass& pass, LayerHistory& history, LayerStep& step) {
  const bool has_last = history.last_internal.defined() && history.last_step == pass.step - 1;
  if (has_last) step.last_internal = history.last_internal;
  const HeadAttention external = std::exchange(step.external, {});
  if (pass.context_length > 0) {
    step.external = external;
    if (has_last) step.last_external = history.last_external;
    for (size_t t = 0; t < kReuseTaus.size(); ++t) {
      KeptCounter& kept = history.kept[t];
      bool reuses =
          kept.reuses(pass.step, pass.changed, pass.decided, pass.masked, pass.changed_rows);
      reuses = reuses && history.source[t].defined();
      if (!reuses) history.source[t] = external;
      step.source_kinds.push_back(reuses ? kept.kinds().data() : nullptr);
    }
    step.source.assign(history.source.begin(), history.source.end());
  }
  history.last_external = external;
  history.last_internal = step.internal;
  history.last_step = pass.step;
}

void Recorder::put_statistics(const LayerStatistics& statistics, size_t s, int64_t layer_index) {
  put_heads(s, Field::external_mass, layer_index, statistics.external_mass);
  put_heads(s, Field::similarity_external, layer_index, statistics.similarity_external);
  put_heads(s, Field::similarity_internal, layer_index, statistics.similarity_internal);
  put_heads(s, Field::query_gap, layer_index, statistics.query.gap);
  put_heads(s, Field::query_block_gap, layer_index, statistics.query.block_gap);
  put_sums(s, Field::reuse_error, layer_index, statistics.reuse_error);
  if (options_.meta.has_kept_pair) put_sums(s, Field::kept_pair, layer_index, statistics.kept);
}

void Recorder::record_shadow(const AttentionReads& reads, size_t s, int64_t layer_index) {
  const int64_t row = static_cast<int64_t>(s);
  put_head_rows(s, Field::shadow_lse_external, layer_index, reads.exact()->lse_external, row);
  const auto computed = [&](const at::Tensor& out) {
    const at::Tensor rows = out.select(0, row).to(at::kFloat);
    return reads.rows.defined() ? rows.index_select(1, on_device(reads.rows, rows.device())) : rows;
  };
  const at::Tensor exact = computed(reads.exact()->out);
  const at::Tensor error = computed(reads.used.out) - exact;
  put_heads(
      s, Field::shadow_output_error, layer_index,
      error.square().sum({-2, -1}).sqrt() / exact.square().sum({-2, -1}).sqrt().clamp_min(1e-30));
}

void Recorder::on_hidden(const PassContext& context, int64_t layer, const at::Tensor& hidden) {
  if (!reads_layer(context, layer)) return;
  const int64_t index = layer_index(layer);
  const at::Tensor rows = hidden.unsqueeze(1);
  for (size_t s = 0; s < context.sequences.size(); ++s) {
    const SequencePass& pass = context.sequences[s];
    if (pass.kind != PassKind::denoise || !traced(pass)) continue;
    LayerHistory& history = history_of(slot_at(s), index, pass);
    const auto row = static_cast<int64_t>(s);
    if (records(pass) && at_least(RecordLevel::full)) {
      put_array(s, Field::hidden, index, rows, row, {0});
    }
    if (pass.first_step()) {
      history.first_hidden = FirstRows(rows, row);
    } else if (history.first_hidden.like(rows)) {
      when_on_host(
          s, {row_gaps(rows, row, history.first_hidden).gap}, [=, this](const HostTensors& known) {
            put_floats(slot_at(s), Field::hidden_gap, index, known[0].const_data_ptr<float>(), 1);
          });
    }
  }
}

void Recorder::on_committed_keys(const CommittedKeys& keys) {
  if (!reads_keys(keys)) return;
  const int64_t index = layer_index(keys.layer);
  // [K, T, D] -> [T, recorded kv heads, D]
  const auto file_order = [&](const at::Tensor& rows) {
    return buffer_of(recorded_kv_heads(padded_kv_heads(on_host(rows).unsqueeze(0)).squeeze(0))
                         .transpose(0, 1)
                         .to(array_type(), false, /*copy=*/true));
  };
  StoredKeys& stored = prefix_[keys.sequence];
  stored.start = keys.start;
  stored.length = keys.key.size(1);
  stored.slices.push_back({Field::prefix_key, index, file_order(keys.key)});
  stored.slices.push_back({Field::prefix_value, index, file_order(keys.value)});
}

void Recorder::on_remove(int64_t slot) {
  const size_t index = static_cast<size_t>(slot);
  if (index >= slots_.size()) return;
  if (index + 1 < slots_.size()) slots_[index] = std::move(slots_.back());
  slots_.pop_back();
}

void Recorder::finish_slot(Slot& slot, TraceRow& row) {
  put_pending(slot);
  if (row.recorded) {
    for (auto& [field, values] : slot.floats) {
      row.arrays.push_back({field, kAllLayers, make_buffer(std::move(values))});
    }
    for (auto& [field, values] : slot.ints) {
      row.arrays.push_back({field, kAllLayers, make_buffer(std::move(values))});
    }
    for (auto& [field, values] : slot.bytes) {
      row.arrays.push_back({field, kAllLayers, make_buffer(std::move(values))});
    }
    std::move(slot.arrays.begin(), slot.arrays.end(), std::back_inserter(row.arrays));
    if (slot.map.defined()) {
      row.arrays.push_back({Field::map_weight, kAllLayers, buffer_of(slot.map)});
    }
  }
  slot.map.reset();
  slot.floats.clear();
  slot.ints.clear();
  slot.bytes.clear();
  slot.arrays.clear();
}

TraceRow Recorder::row_of(const SequencePass& pass, const PassResult& result) const {
  TraceRow row;
  row.sequence = traced_.at(pass.sequence).trace_sequence;
  row.pass = result.context.pass;
  row.kind = pass.kind;
  row.block = pass.kind == PassKind::prefill ? -1 : pass.block;
  row.block_start = pass.block_start;
  row.step = pass.step;
  row.context_length = pass.context_length;
  row.changed = pass.changed;
  row.since_read = pass.since_read;
  if (pass.kind != PassKind::prefill) row.rows_read = options_.meta.block_length;
  row.masks_left = pass.masks_left;
  row.recorded = records(pass);
  row.pass_time_ns = result.pass_ns;
  return row;
}

void Recorder::take_prefix(const SequencePass& pass, TraceRow& row) {
  const auto prefix = prefix_.find(pass.sequence);
  if (prefix == prefix_.end()) return;
  row.prefix_start = prefix->second.start;
  row.prefix_length = prefix->second.length;
  auto& slices = prefix->second.slices;
  std::move(slices.begin(), slices.end(), std::back_inserter(row.arrays));
  prefix_.erase(prefix);
}

/// Writes a separate row, so the stored keys come before the row that read them, as in every other
/// trace. The denoising row of the same pass already has all of the pass's time.
void Recorder::write_fused_commit(const PassResult& result, const SequencePass& commit) {
  TraceRow row = row_of(commit, result);
  row.pass_time_ns = 0;
  take_prefix(commit, row);
  writer_.append_row(std::move(row));
}

void Recorder::on_pass(const PassResult& result) {
  const bool prefill = result.context.sequences.front().kind == PassKind::prefill;
  // Sequences that are not recorded have an entry, too: on_remove moves the last slot, which must
  // be the decoder's last one.
  if (!prefill) slots_.resize(result.context.sequences.size());
  for (size_t s = 0; s < result.context.sequences.size(); ++s) {
    const SequencePass& pass = result.context.sequences[s];
    if (!traced(pass)) continue;
    for (const FusedCommit& commit : result.context.commits) {
      if (commit.slot == static_cast<int64_t>(s)) write_fused_commit(result, commit.pass);
    }
    TraceRow row = row_of(pass, result);
    if (s < result.rows_read.size()) row.rows_read = result.rows_read[s];
    if (pass.kind == PassKind::denoise) {
      ++counters_.denoising_rows;
      counters_.tokens += result.decisions[s].net_tokens();
      add_prediction(pass, result.decisions[s], row);
      row.delta = options_.meta.noise_canvas ? canvas_delta(pass, result.decisions[s])
                                             : frame_delta(pass, result.decisions[s]);
      add_revocations(pass, result.decisions[s], row);
      if (options_.meta.has_kl) add_kl(result.decisions[s], row);
      if (result.decisions[s].verdict) add_verdict(*result.decisions[s].verdict, row);
      row.valid.assign(pass.computed.begin(), pass.computed.end());
    } else if (s < result.decisions.size() && result.decisions[s].next) {
      ++counters_.tokens;
      row.delta = first_token_delta(pass, result, *result.decisions[s].next);
    } else if (s < result.decisions.size() && !result.decisions[s].noise.empty()) {
      row.delta = canvas_delta(pass, result.decisions[s]);
    }
    if (pass.kind != PassKind::prefill && s < slots_.size()) finish_slot(slots_[s], row);
    for (const LayerWork& work : result.work) {
      row.cache.push_back({ranges_with(work.queries, work.chosen),
                           ranges_with(work.keys, work.chosen), ranges_of(work.values)});
    }
    take_prefix(pass, row);
    writer_.append_row(std::move(row));
  }
}

}  // namespace blockscope
