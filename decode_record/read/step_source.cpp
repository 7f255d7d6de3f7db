#include "decode_record/read/step_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "decode_record/base/error.h"

namespace blockscope {

StepSource::StepSource(const std::string& path, std::string who, const PatchedModel& model,
                       const std::vector<Field>& needed)
    : trace_(path), who_(std::move(who)) {
  const TraceMeta& meta = trace_.info().meta;
  const auto same = [&](const char* what, int64_t expected, int64_t got) {
    if (expected >= 0 && expected != got)
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

void StepSource::refuse(const std::string& why) const {
  throw UsageError(fmt::format("{}: {}: {}", who_, trace_.info().path, why));
}

int64_t StepSource::row_of(const SoughtStep& step) const {
  if (const int64_t block = trace_.info().meta.block_length; block != step.block_length) {
    refuse(fmt::format("expected blocks of {} positions, as in this run, got {}", step.block_length,
                       block));
  }
  const auto sequence = sequences_.find(step.prompt);
  if (sequence == sequences_.end()) {
    refuse(
        fmt::format("expected the prompt of sequence {} of this run, got only others. HINT: "
                    "capture the same prompts",
                    step.sequence));
  }
  const auto row = recorded_.find({sequence->second, step.block_start, step.step});
  if (row == recorded_.end()) {
    refuse(fmt::format(
        "expected sequence {}, block at position {}, step {}, got no such recorded row. HINT: "
        "choose steps= and blocks= that both runs have",
        sequence->second, step.block_start, step.step));
  }
  return row->second;
}

int64_t StepSource::layer_slot(int64_t layer) const {
  const std::vector<int64_t>& layers = trace_.info().meta.layers;
  const auto found = std::ranges::find(layers, layer);
  if (found == layers.end()) {
    refuse(fmt::format("expected layer {}, got layers {}", layer, fmt::join(layers, ",")));
  }
  return found - layers.begin();
}

std::vector<float> StepSource::computed_values(Field field, const SoughtStep& step,
                                               int64_t layer) const {
  const int64_t row = row_of(step);
  std::vector<float> values = trace_.read_floats_at(field, row, layer_slot(layer));
  if (std::ranges::any_of(values, [](float x) { return std::isnan(x); })) {
    refuse(fmt::format(
        "{}: row {}: expected values of the whole block, got only some positions. HINT: capture "
        "that run with a --cache that computes whole blocks",
        spec_of(field).path, row));
  }
  return values;
}

std::vector<float> StepSource::of_heads(Field field, const SoughtStep& step, int64_t layer,
                                        const std::vector<int64_t>& heads) const {
  const TraceMeta& meta = trace_.info().meta;
  std::vector<size_t> slots;
  for (const int64_t head : heads) {
    const auto found = std::ranges::find(meta.heads, head);
    if (found == meta.heads.end()) {
      refuse(fmt::format("expected head {}, got heads {}", head, fmt::join(meta.heads, ",")));
    }
    slots.push_back(static_cast<size_t>(found - meta.heads.begin()));
  }
  const std::vector<float> all = computed_values(field, step, layer);
  const size_t of_head = all.size() / meta.heads.size();
  std::vector<float> values;
  for (const size_t slot : slots) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(slot * of_head);
    values.insert(values.end(), first, first + static_cast<std::ptrdiff_t>(of_head));
  }
  return values;
}

std::vector<float> StepSource::hidden(const SoughtStep& step, int64_t layer) const {
  return computed_values(Field::hidden, step, layer);
}

}  // namespace blockscope
