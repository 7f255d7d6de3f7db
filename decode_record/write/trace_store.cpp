#include "decode_record/write/trace_store.h"

#include <algorithm>
#include <cstring>
#include <map>

namespace blockscope {
namespace {

// The most bytes of columns that wait in memory for the next commit.
constexpr std::int64_t kPendingBytes = 4 << 20;
const LayerRanges kNothing;

std::int32_t narrow(std::int64_t value) { return static_cast<std::int32_t>(value); }

std::vector<std::int32_t> narrow(const std::vector<std::int64_t>& values) {
  return {values.begin(), values.end()};
}

template <typename Value>
std::size_t bytes_of(const std::vector<Value>& values) {
  return values.size() * sizeof(Value);
}

/// Copies one layer's values into a row. In the row, the layer axis may come after other axes.
void place_layer(const DatasetSpec& spec, const TraceMeta& meta, std::int64_t layer,
                 const Buffer& from, std::vector<std::byte>& row) {
  std::size_t outer = 1;
  std::size_t axis = 1;
  for (; spec.axes[axis] != Axis::layer; ++axis) {
    outer *= static_cast<std::size_t>(axis_length(spec.axes[axis], meta));
  }
  const auto layers = static_cast<std::size_t>(axis_length(Axis::layer, meta));
  const std::size_t inner = from.size / outer;
  const auto* source = static_cast<const std::byte*>(from.data);
  for (std::size_t i = 0; i < outer; ++i) {
    std::memcpy(row.data() + (i * layers + static_cast<std::size_t>(layer)) * inner,
                source + i * inner, inner);
  }
}

/// Row datasets that the recorder fills (the others are the writer's own).
bool is_recorders(const DatasetSpec& spec) {
  return spec.per_row() && spec.field >= Field::prediction_token && spec.field != Field::prefix_end;
}

}  // namespace

std::pair<std::int64_t, std::int32_t> TraceStore::append_text(const std::string& text) {
  const std::int64_t start = file_.length(Axis::text_byte);
  file_.grow(Axis::text_byte, static_cast<std::int64_t>(text.size()));
  file_.append(Field::sequence_bytes, text.data(), text.size());
  return {start, static_cast<std::int32_t>(text.size())};
}

void TraceStore::write(const Item& item) {
  file_.check_unharmed(/*named=*/false);
  std::visit([this](const auto& value) { write(value); }, item);
  file_.note_size();
}

void TraceStore::write(const BeginItem& item) {
  const SequenceStart& start = item.start;
  const PromptHash hash = hash_prompt(start.prompt);
  const std::vector<std::int32_t> prompt = narrow(start.prompt);
  const std::int64_t prompt_start = file_.length(Axis::prompt_element);
  file_.grow(Axis::sequence, 1);
  file_.grow(Axis::prompt_element, static_cast<std::int64_t>(prompt.size()));
  file_.append(Field::sequence_prompt_token, prompt.data(), bytes_of(prompt));
  if (file_.has(Field::sequence_prompt_region)) {
    std::vector<std::uint8_t> regions = start.prompt_regions;
    for (std::size_t i = regions.size(); i < prompt.size(); ++i) {
      regions.push_back(i < kFirstPositions ? 0 : 1);
    }
    file_.append(Field::sequence_prompt_region, regions.data(), regions.size());
  }
  file_.append(Field::sequence_prompt_hash, hash.data(), hash.size());
  file_.append_value(Field::sequence_gen_length, narrow(start.gen_length));
  file_.append_value(Field::sequence_prompt_start, prompt_start);
  file_.append_value(Field::sequence_prompt_length, static_cast<std::int32_t>(prompt.size()));
  const auto text = [this](Field start_field, Field length_field, const std::string& value) {
    const auto [at, length] = append_text(value);
    file_.append_value(start_field, at);
    file_.append_value(length_field, length);
  };
  text(Field::sequence_name_start, Field::sequence_name_length, start.name);
  text(Field::sequence_answer_start, Field::sequence_answer_length, start.answer);
  text(Field::sequence_metric_start, Field::sequence_metric_length, start.metric);
  text(Field::sequence_text_start, Field::sequence_text_length, "");
  file_.append_value(Field::sequence_score, std::numeric_limits<float>::quiet_NaN());
  file_.append_value(Field::sequence_aborted, std::uint8_t{0});
  file_.append_value(Field::sequence_finish_reason, std::uint8_t{0});
}

void TraceStore::write(const EndItem& item) {
  const auto [start, length] = append_text(item.end.text);
  file_.write_pending();  // the sequence's own row must be in the file before it is overwritten
  file_.overwrite(Field::sequence_text_start, item.sequence, &start);
  file_.overwrite(Field::sequence_text_length, item.sequence, &length);
  if (item.end.score) file_.overwrite(Field::sequence_score, item.sequence, &*item.end.score);
  // The reason promises the text, so it is written when the text is committed.
  ended_.emplace_back(item.sequence, item.end.reason);
}

void TraceStore::write(const RowItem& item) {
  if (item.state) write_keyframe(*item.state);
  file_.grow(Axis::row, 1);
  write_step(item);
  write_delta(item.delta);
  if (meta_.has_revocations) write_revocations(item.row);
  if (meta_.has_cache) write_cache(item.row);
  write_arrays(item);
  if (file_.pending_bytes() > kPendingBytes) file_.write_pending();
}

void TraceStore::write_step(const RowItem& item) {
  const TraceRow& row = item.row;
  std::vector<std::uint8_t> valid = row.valid;
  if (valid.empty()) {
    valid.assign(static_cast<std::size_t>(meta_.block_length), row.kind != PassKind::prefill);
  }
  file_.append_value(Field::row, file_.length(Axis::row) - 1);
  file_.append_value(Field::step_sequence, narrow(row.sequence));
  file_.append_value(Field::step_pass, row.pass);
  file_.append_value(Field::step_previous, item.previous);
  file_.append_value(Field::step_kind, static_cast<std::uint8_t>(row.kind));
  file_.append_value(Field::step_block, narrow(row.block));
  file_.append_value(Field::step_block_start, narrow(row.block_start));
  file_.append_value(Field::step_step, narrow(row.step));
  file_.append_value(Field::step_context_length, narrow(row.context_length));
  file_.append_value(Field::step_changed, narrow(row.changed));
  if (meta_.has_since_read) {
    file_.append_value(Field::step_since_read, narrow(row.since_read));
    file_.append_value(Field::step_rows_read, narrow(row.rows_read));
  }
  file_.append_value(Field::step_masks_left, narrow(row.masks_left));
  file_.append(Field::step_valid, valid.data(), valid.size());
  file_.append_value(Field::step_recorded, static_cast<std::uint8_t>(row.recorded));
  file_.append_value(Field::step_pass_time_ns, row.pass_time_ns);
  if (meta_.continuous()) file_.append_value(Field::step_timestep, row.timestep);
  file_.append_value(Field::row_keyframe, item.keyframe);
}

void TraceStore::write_delta(const SequenceDelta& delta) {
  const std::size_t transfers = delta.transfer_index.size();
  const std::size_t insertions = delta.insert_index.size();
  file_.grow(Axis::delta, static_cast<std::int64_t>(transfers));
  file_.grow(Axis::insertion, static_cast<std::int64_t>(insertions));
  file_.grow(Axis::deletion, static_cast<std::int64_t>(delta.delete_index.size()));
  const auto append = [this](Field field, const std::vector<std::int64_t>& values) {
    const std::vector<std::int32_t> words = narrow(values);
    file_.append(field, words.data(), bytes_of(words));
  };
  append(Field::delta_position, delta.transfer_index);
  append(Field::delta_step, delta.transfer_step);
  append(Field::insert_position, delta.insert_index);
  append(Field::insert_step, delta.insert_step);
  append(Field::delete_position, delta.delete_index);
  // A resolved delta holds the transferred tokens first, then the inserted ones.
  const std::vector<std::int32_t> tokens = narrow(delta.decoded_tokens);
  const auto append_part = [&](Field token, Field confidence, std::size_t first,
                               std::size_t count) {
    file_.append(token, tokens.data() + first, count * sizeof(std::int32_t));
    file_.append(confidence, delta.confidence.data() + first, count * sizeof(float));
  };
  append_part(Field::delta_token, Field::delta_confidence, 0, transfers);
  append_part(Field::insert_token, Field::insert_confidence, transfers, insertions);
  file_.append_value(Field::delta_end, file_.length(Axis::delta));
  file_.append_value(Field::insert_end, file_.length(Axis::insertion));
  file_.append_value(Field::delete_end, file_.length(Axis::deletion));
}

void TraceStore::write_revocations(const TraceRow& row) {
  file_.grow(Axis::revocation, static_cast<std::int64_t>(row.revoked.size()));
  for (const RevokedToken& one : row.revoked) {
    file_.append_value(Field::revoke_position, narrow(one.position));
    file_.append_value(Field::revoke_token, narrow(one.token));
    file_.append_value(Field::revoke_confidence, one.confidence);
  }
  file_.append_value(Field::revoke_end, file_.length(Axis::revocation));
}

void TraceStore::write_cache(const TraceRow& row) {
  const auto append = [&](std::vector<PositionRange> LayerRanges::*part, Axis axis, Field end,
                          Field start, Field stop) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(meta_.num_layers); ++i) {
      const LayerRanges& layer = row.cache.empty() ? kNothing : row.cache[i];
      file_.grow(axis, static_cast<std::int64_t>((layer.*part).size()));
      for (const PositionRange& range : layer.*part) {
        file_.append_value(start, range.start);
        file_.append_value(stop, range.stop);
      }
      file_.append_value(end, file_.length(axis));
    }
  };
  append(&LayerRanges::query, Axis::query_range, Field::query_end, Field::query_start,
         Field::query_stop);
  append(&LayerRanges::key, Axis::key_range, Field::key_end, Field::key_start, Field::key_stop);
  append(&LayerRanges::value, Axis::value_range, Field::value_end, Field::value_start,
         Field::value_stop);
}

void TraceStore::write_keyframe(const Frame& state) {
  const std::vector<std::int32_t> tokens = narrow(state.generated_tokens);
  const std::vector<std::int32_t> steps = narrow(state.steps);
  file_.grow(Axis::keyframe, 1);
  file_.grow(Axis::keyframe_element, static_cast<std::int64_t>(tokens.size()));
  file_.append_value(Field::keyframe_row, file_.length(Axis::row));
  file_.append_value(Field::keyframe_end, file_.length(Axis::keyframe_element));
  file_.append(Field::keyframe_token, tokens.data(), bytes_of(tokens));
  file_.append(Field::keyframe_confidence, state.confidence.data(), bytes_of(state.confidence));
  file_.append(Field::keyframe_step, steps.data(), bytes_of(steps));
}

void TraceStore::write_arrays(const RowItem& item) {
  std::array<bool, kNumFields> given{};
  std::map<Field, std::vector<std::byte>> assembled;  // rows that arrive layer by layer
  const std::int64_t row = num_rows() - 1;
  const auto store_row = [&](const DatasetSpec& spec, const void* data, std::size_t bytes) {
    if (spec.storage == Storage::column) {
      file_.append(spec.field, data, bytes);
    } else {
      file_.write_row(spec.field, row, data, bytes);
    }
  };
  for (const ArraySlice& slice : item.row.arrays) {
    const DatasetSpec& spec = spec_of(slice.field);
    if (!spec.per_row()) continue;
    given[static_cast<std::size_t>(slice.field)] = true;
    if (slice.layer == kAllLayers) {
      store_row(spec, slice.data.data, slice.data.size);
    } else if (spec.storage == Storage::row_layer) {
      file_.write_layer(slice.field, row, 1, slice.layer, slice.data.data, slice.data.size);
    } else {
      auto& whole = assembled[slice.field];
      if (whole.empty()) {
        whole.resize(row_bytes(spec, meta_));
        fill_missing(whole, file_element(spec, meta_));
      }
      place_layer(spec, meta_, slice.layer, slice.data, whole);
    }
  }
  for (const auto& [field, whole] : assembled)
    store_row(spec_of(field), whole.data(), whole.size());
  fill_absent(given);
  if (file_.has(Field::prefix_end)) write_prefix(item.row);
}

void TraceStore::fill_absent(const std::array<bool, kNumFields>& given) {
  for (const DatasetSpec& spec : kDatasets) {
    const bool wanted = is_recorders(spec) && spec.storage == Storage::column &&
                        file_.has(spec.field) && !given[static_cast<std::size_t>(spec.field)];
    if (!wanted) continue;
    std::vector<std::byte> missing(row_bytes(spec, meta_));
    fill_missing(missing, file_element(spec, meta_));
    file_.append(spec.field, missing.data(), missing.size());
  }
}

void TraceStore::write_prefix(const TraceRow& row) {
  const std::int64_t first = file_.length(Axis::prefix_element);
  file_.grow(Axis::prefix_element, row.prefix_length);
  file_.append_value(Field::prefix_end, file_.length(Axis::prefix_element));
  for (std::int64_t i = 0; i < row.prefix_length; ++i) {
    file_.append_value(Field::prefix_sequence, narrow(row.sequence));
    file_.append_value(Field::prefix_position, narrow(row.prefix_start + i));
  }
  const auto layers = static_cast<std::size_t>(axis_length(Axis::layer, meta_));
  for (const ArraySlice& slice : row.arrays) {
    const DatasetSpec& spec = spec_of(slice.field);
    if (spec.storage != Storage::column_layer) continue;
    if (slice.layer != kAllLayers) {
      file_.write_layer(slice.field, first, row.prefix_length, slice.layer, slice.data.data,
                        slice.data.size);
      continue;
    }
    const std::size_t inner = row_bytes(spec, meta_) / layers;
    const auto count = static_cast<std::size_t>(row.prefix_length);
    std::vector<std::byte> part(count * inner);
    for (std::size_t layer = 0; layer < layers; ++layer) {
      const auto* source = static_cast<const std::byte*>(slice.data.data);
      for (std::size_t i = 0; i < count; ++i) {
        std::memcpy(part.data() + i * inner, source + (i * layers + layer) * inner, inner);
      }
      file_.write_layer(slice.field, first, row.prefix_length, static_cast<std::int64_t>(layer),
                        part.data(), part.size());
    }
  }
}

void TraceStore::commit() {
  file_.check_unharmed(/*named=*/true);
  file_.flush();
  // Only now may the file count the rows, and only after that the texts.
  const std::int64_t sequences = num_sequences();
  const std::int64_t rows = num_rows();
  file_.overwrite(Field::sequence_committed, 0, &sequences);
  file_.flush(Field::sequence_committed);
  file_.overwrite(Field::step_committed, 0, &rows);
  file_.flush(Field::step_committed);
  for (const auto& [sequence, reason] : ended_) {
    const auto code = static_cast<std::uint8_t>(reason);
    file_.overwrite(Field::sequence_finish_reason, sequence, &code);
  }
  if (!ended_.empty()) file_.flush(Field::sequence_finish_reason);
  ended_.clear();
  file_.note_size();
}

OwnFile TraceStore::close(bool complete) {
  commit();
  file_.trim();
  if (complete) {
    const std::uint8_t yes = 1;
    file_.overwrite(Field::run_complete, 0, &yes);
    file_.flush(Field::run_complete);
  }
  return file_.close();
}

}  // namespace blockscope
