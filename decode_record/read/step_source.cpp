#include "decode_record/read/step_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "decode_record/base/error.h"

namespace blockscope {

StepSource::StepSource(const std::string& path, std::string who, const PatchedModel& model,
                       const std::vector<Field>& needed)
    : trace_(path), who_(std::move(who)) {
  check_model(model);
  for (const Field field : needed) {
    if (trace_.has(field)) continue;
    refuse(fmt::format("expected {}, got a trace of level {}. HINT: record it at level {}",
                       spec_of(field).path, to_string(info().meta.level),
                       field == Field::hidden ? "full" : "outputs"));
  }
  for (int64_t sequence = info().num_sequences; sequence-- > 0;) {
    const SequenceInfo facts = trace_.sequence(sequence);
    if (!facts.aborted) sequences_[facts.prompt] = sequence;  // of equal prompts, the first
  }
  const StepColumns steps = trace_.steps(0, info().num_rows);
  for (size_t row = 0; row < steps.kind.size(); ++row) {
    if (steps.kind[row] != static_cast<uint8_t>(PassKind::denoise) || steps.recorded[row] == 0) {
      continue;
    }
    recorded_[{steps.sequence[row], steps.block_start[row], steps.step[row]}] =
        static_cast<int64_t>(row);
  }
}

void StepSource::check_model(const PatchedModel& model) const {
  const TraceMeta& meta = info().meta;
  const auto same = [&](const char* what, int64_t expected, int64_t got) {
    if (expected >= 0 && expected != got)
      refuse(fmt::format("{}: expected the model's {}, got {}", what, expected, got));
  };
  same("num_layers", model.num_layers, meta.num_layers);
  same("num_heads", model.num_heads, meta.num_heads);
  same("num_kv_heads", model.num_kv_heads, meta.num_kv_heads);
  same("head_dim", model.head_dim, meta.head_dim);
  same("hidden_size", model.hidden_size, meta.hidden_size);
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
                    "record that run with the same prompts",
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

std::vector<float> StepSource::chosen(Field field, int64_t row, int64_t layer,
                                      const std::vector<float>& all,
                                      const std::vector<size_t>& groups, size_t num_groups) const {
  const auto positions = static_cast<size_t>(info().meta.block_length);
  const size_t width = all.size() / num_groups / positions;
  const auto values_at = [&](size_t group, size_t position) {
    return std::span(all).subspan((group * positions + position) * width, width);
  };
  const auto computed = [&](size_t position) {
    for (size_t group = 0; group < num_groups; ++group) {
      const auto values = values_at(group, position);
      if (!std::ranges::all_of(values, [](float x) { return std::isnan(x); })) return true;
    }
    return false;
  };
  const bool of_lse =
      field == Field::attention_lse_external || field == Field::attention_lse_internal;
  const auto possible = [&](float x) {  // -inf: no keys
    return std::isfinite(x) || (of_lse && x == -std::numeric_limits<float>::infinity());
  };
  std::vector<float> found;
  for (const size_t group : groups) {
    for (size_t position = 0; position < positions; ++position) {
      const auto values = values_at(group, position);
      found.insert(found.end(), values.begin(), values.end());
      const auto wrong = std::ranges::find_if_not(values, possible);
      if (wrong == values.end()) continue;
      if (!computed(position)) {
        refuse(fmt::format(
            "{}: row {}: expected values of the whole block, got only some positions. HINT: record "
            "a run whose passes compute whole blocks",
            spec_of(field).path, row));
      }
      const std::string head =
          field == Field::hidden ? "" : fmt::format(", head {}", info().meta.heads[group]);
      throw CorruptTrace(fmt::format(
          "{}: {}:{}: row {}, layer {}{}: expected finite values, got {}. HINT: the file is "
          "damaged, or that run's values overflowed",
          who_, info().path, spec_of(field).path, row, layer, head, *wrong));
    }
  }
  return found;
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
  const int64_t row = row_of(step);
  return chosen(field, row, layer, trace_.read_floats_at(field, row, layer_slot(layer)), slots,
                meta.heads.size());
}

std::vector<float> StepSource::hidden(const SoughtStep& step, int64_t layer) const {
  const int64_t row = row_of(step);
  return chosen(Field::hidden, row, layer,
                trace_.read_floats_at(Field::hidden, row, layer_slot(layer)), {0}, 1);
}

}  // namespace blockscope
