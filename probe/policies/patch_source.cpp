#include "probe/policies/patch_source.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "decode_record/base/error.h"

namespace blockscope {

PatchSource::PatchSource(const std::string& path, const PatchedModel& model,
                         const std::vector<Field>& needed)
    : trace_(path) {
  const TraceMeta& meta = trace_.info().meta;
  const auto same = [&](const char* what, int64_t expected, int64_t got) {
    if (expected != got)
      refuse(fmt::format("{}: expected the model's {}, got {}", what, expected, got));
  };
  same("num_layers", model.num_layers, meta.num_layers);
  same("num_heads", model.num_heads, meta.num_heads);
  same("num_kv_heads", model.num_kv_heads, meta.num_kv_heads);
  same("head_dim", model.head_dim, meta.head_dim);
  same("hidden_size", model.hidden_size, meta.hidden_size);
  for (const Field field : needed) {
    if (trace_.has(field)) continue;
    refuse(fmt::format("expected {}, got a trace of level {}. HINT: capture it with --record {}",
                       spec_of(field).path, to_string(meta.level),
                       field == Field::hidden ? "full" : "outputs"));
  }
  const TraceInfo& info = trace_.info();
  for (int64_t sequence = info.num_sequences; sequence-- > 0;) {
    const SequenceInfo facts = trace_.sequence(sequence);
    if (!facts.aborted) sequences_[facts.prompt] = sequence;  // of equal prompts, the first
  }
  const StepColumns steps = trace_.steps(0, info.num_rows);
  for (size_t row = 0; row < steps.kind.size(); ++row) {
    if (steps.kind[row] != static_cast<uint8_t>(PassKind::denoise) || steps.recorded[row] == 0) {
      continue;
    }
    recorded_[{steps.sequence[row], steps.block_start[row], steps.step[row]}] =
        static_cast<int64_t>(row);
  }
}

void PatchSource::refuse(const std::string& why) const {
  throw UsageError(fmt::format("intervene: {}: {}", trace_.info().path, why));
}

int64_t PatchSource::row_of(const SequencePass& pass) const {
  const auto length = std::ssize(pass.masked);
  if (const int64_t block = trace_.info().meta.block_length; block != length) {
    refuse(fmt::format("expected blocks of {} positions, as in this run, got {}", length, block));
  }
  const auto sequence = sequences_.find(*pass.prompt);
  if (sequence == sequences_.end()) {
    refuse(
        fmt::format("expected the prompt of sequence {} of this run, got only others. HINT: "
                    "capture the same prompts",
                    pass.sequence));
  }
  const auto row = recorded_.find({sequence->second, pass.block_start, pass.step});
  if (row == recorded_.end()) {
    refuse(fmt::format(
        "expected sequence {}, block at position {}, step {}, got no such recorded row. HINT: "
        "choose steps= and blocks= that both runs have",
        sequence->second, pass.block_start, pass.step));
  }
  return row->second;
}

int64_t PatchSource::layer_slot(int64_t layer) const {
  const std::vector<int64_t>& layers = trace_.info().meta.layers;
  const auto found = std::ranges::find(layers, layer);
  if (found == layers.end()) {
    refuse(fmt::format("expected layer {}, got layers {}", layer, fmt::join(layers, ",")));
  }
  return found - layers.begin();
}

std::vector<float> PatchSource::computed_values(Field field, const SequencePass& pass,
                                                int64_t layer) const {
  const int64_t row = row_of(pass);
  std::vector<float> values = trace_.read_floats_at(field, row, layer_slot(layer));
  if (std::ranges::any_of(values, [](float x) { return std::isnan(x); })) {
    refuse(fmt::format(
        "{}: row {}: expected values of the whole block, got only some positions. HINT: capture "
        "that run with a --cache that computes whole blocks",
        spec_of(field).path, row));
  }
  return values;
}

at::Tensor PatchSource::of_heads(Field field, const SequencePass& pass, int64_t layer,
                                 const at::Tensor& heads) const {
  const TraceMeta& meta = trace_.info().meta;
  std::vector<int64_t> slots;
  for (int64_t i = 0; i < heads.numel(); ++i) {
    const int64_t head = heads[i].item<int64_t>();
    const auto found = std::ranges::find(meta.heads, head);
    if (found == meta.heads.end()) {
      refuse(fmt::format("expected head {}, got heads {}", head, fmt::join(meta.heads, ",")));
    }
    slots.push_back(found - meta.heads.begin());
  }
  const std::vector<float> values = computed_values(field, pass, layer);
  at::Tensor all =
      at::tensor(values, at::kFloat).view({std::ssize(meta.heads), meta.block_length, -1});
  if (spec_of(field).rank == 4) all = all.squeeze(2);
  return all.index_select(0, at::tensor(slots, at::kLong));
}

at::Tensor PatchSource::hidden(const SequencePass& pass, int64_t layer) const {
  const std::vector<float> values = computed_values(Field::hidden, pass, layer);
  return at::tensor(values, at::kFloat).view({trace_.info().meta.block_length, -1});
}

}  // namespace blockscope
