// A small trace whose every value follows from its row number, so that a test (or a Python script)
// know the expected content of the file without a copy of it.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "decode_record/write/trace_writer.h"

namespace blockscope::fixture {

/// A separate folder in the system's temporary one, removed at the end of the test.
class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "blockscope.XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline TraceMeta small_meta(RecordLevel level = RecordLevel::full,
                            ArrayType type = ArrayType::bf16) {
  TraceMeta meta;
  meta.num_layers = 3;
  meta.num_heads = 4;
  meta.num_kv_heads = 2;
  meta.head_dim = 8;
  meta.hidden_size = 24;
  meta.vocab_size = 100;
  meta.mask_token_id = 99;
  meta.softmax_scale = 1.0 / std::sqrt(8.0);
  meta.block_length = 4;
  meta.level = level;
  meta.record_everything();
  meta.layers = {0, 2};
  meta.heads = {0, 1, 3};
  meta.set_size = 5;
  meta.array_type = type;
  meta.has_cache = true;
  meta.has_revocations = true;
  meta.has_kl = true;
  meta.model_json = R"({"requested":"","name":"fixture"})";
  meta.run_json = R"({"version":"test","policy":"exact"})";
  for (int i = 0; i < 100; ++i) meta.pieces.push_back("piece" + std::to_string(i));
  return meta;
}

/// Exactly representable in bfloat16: 8 bits of significand, so small integers and halves. Integers
/// are in range as flags (u8), or as tokens, positions and counts of any sequence here (i32).
inline float expected_value(Field field, std::int64_t row, std::int64_t layer, std::int64_t i) {
  const auto seed = static_cast<std::uint64_t>(row) * 31 + static_cast<std::uint64_t>(layer) * 7 +
                    static_cast<std::uint64_t>(field) * 13 + static_cast<std::uint64_t>(i);
  if (spec_of(field).type == ElementType::u8) return static_cast<float>(seed % 2);
  if (spec_of(field).type == ElementType::i32) return static_cast<float>(seed % 4);
  return static_cast<float>(seed % 251) * 0.5F;
}

/// One layer (or a row without layers) of a dataset, in the file's element type.
inline Buffer values(const TraceMeta& meta, Field field, std::int64_t row, std::int64_t layer,
                     std::size_t count) {
  const DatasetSpec& spec = spec_of(field);
  const auto at = [&](std::size_t i) {
    return expected_value(field, row, layer, static_cast<std::int64_t>(i));
  };
  if (spec.type == ElementType::u8) {
    std::vector<std::uint8_t> bytes(count);
    for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::uint8_t>(at(i));
    return make_buffer(std::move(bytes));
  }
  if (spec.type == ElementType::i32) {
    std::vector<std::int32_t> words(count);
    for (std::size_t i = 0; i < count; ++i) words[i] = static_cast<std::int32_t>(at(i));
    return make_buffer(std::move(words));
  }
  std::vector<float> floats(count);
  for (std::size_t i = 0; i < count; ++i) floats[i] = at(i);
  if (spec.type == ElementType::f16) {
    std::vector<std::uint16_t> halves(count);
    for (std::size_t i = 0; i < count; ++i) {  // not negative, and no more than 11 bits
      int exponent = 0;
      const float fraction = std::frexp(floats[i], &exponent);
      halves[i] =
          floats[i] == 0.0F
              ? std::uint16_t{0}
              : static_cast<std::uint16_t>((exponent + 14) * 1024 +
                                           static_cast<int>((2.0F * fraction - 1.0F) * 1024.0F));
    }
    return make_buffer(std::move(halves));
  }
  if (spec.type == ElementType::f32 || meta.array_type == ArrayType::f32) {
    return make_buffer(std::move(floats));
  }
  std::vector<std::uint16_t> words(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &floats[i], sizeof(bits));
    words[i] = static_cast<std::uint16_t>(bits >> 16U);
  }
  return make_buffer(std::move(words));
}

inline bool is_recorders(const DatasetSpec& spec, const TraceMeta& meta) {
  return exists_in(spec, meta) && spec.per_row() && spec.field >= Field::prediction_token &&
         spec.field != Field::prefix_end;
}

inline bool has_layers(const DatasetSpec& spec) {
  for (std::size_t i = 0; i < spec.rank; ++i) {
    if (spec.axes[i] == Axis::layer) return true;
  }
  return false;
}

/// Every dataset of the row: layer by layer where it has layers.
inline void add_arrays(TraceRow& row, const TraceMeta& meta, std::int64_t number) {
  const auto layers = static_cast<std::int64_t>(meta.layers.size());
  for (const DatasetSpec& spec : kDatasets) {
    if (!is_recorders(spec, meta)) continue;
    const std::size_t elements = row_bytes(spec, meta) / element_size(spec, meta);
    if (!has_layers(spec)) {
      row.arrays.push_back({spec.field, kAllLayers, values(meta, spec.field, number, 0, elements)});
      continue;
    }
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      row.arrays.push_back(
          {spec.field, layer,
           values(meta, spec.field, number, layer, elements / static_cast<std::size_t>(layers))});
    }
  }
}

inline void add_prefix(TraceRow& row, const TraceMeta& meta, std::int64_t start,
                       std::int64_t length) {
  row.prefix_start = start;
  row.prefix_length = length;
  if (!exists_in(spec_of(Field::prefix_key), meta)) return;
  const auto layers = static_cast<std::int64_t>(meta.layers.size());
  for (const Field field : {Field::prefix_key, Field::prefix_value}) {
    const std::size_t count = row_bytes(spec_of(field), meta) / element_size(spec_of(field), meta) /
                              static_cast<std::size_t>(layers) * static_cast<std::size_t>(length);
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      row.arrays.push_back({field, layer, values(meta, field, start, layer, count)});
    }
  }
}

/// One or two ranges a layer, of the first 8 positions; keys one range, values none in layer 1.
inline std::vector<LayerRanges> cache_of(const TraceMeta& meta, std::int64_t number) {
  std::vector<LayerRanges> layers(static_cast<std::size_t>(meta.num_layers));
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const auto at = static_cast<std::int32_t>((number + static_cast<std::int64_t>(l)) % 3);
    layers[l].query = {{at, at + 2}};
    if (l == 1) layers[l].query.push_back({at + 4, at + 5});
    layers[l].key = {{0, at + 3}};
    if (l != 1) layers[l].value = {{at, 8}};
  }
  return layers;
}

/// Sequence i: a prompt of 4 + i tokens, blocks of 4, two tokens per denoising step.
inline SequenceStart sequence_start(std::int64_t i, std::int64_t blocks) {
  SequenceStart start;
  start.name = "task-" + std::to_string(i);
  for (std::int64_t t = 0; t < 4 + i; ++t) start.prompt.push_back((t * 3 + i) % 90);
  start.gen_length = blocks * 4;
  start.answer = "answer " + std::to_string(i);
  start.metric = "exact_match";
  return start;
}

/// Row `number` of the file: denoising step `step` (0, 1) of `block` of the sequence.
inline TraceRow denoise_row(const TraceMeta& meta, std::int64_t sequence, std::int64_t number,
                            std::int64_t block, std::int64_t step) {
  TraceRow row;
  row.sequence = sequence;
  row.pass = number;
  row.kind = PassKind::denoise;
  row.block = block;
  row.block_start = 4 + sequence % 50 + block * 4;  // trace_tool's prompts begin anew after 50
  row.step = step + 1;
  row.context_length = row.block_start;
  row.changed = step == 0 ? 0 : 2;
  row.masks_left = 4 - 2 * step;
  row.recorded = true;
  row.pass_time_ns = number * 1000 + 1;
  const std::int64_t at = block * 4 + step * 2;
  row.delta = make_transfer({at, at + 1}, {number % 90, (number + 1) % 90},
                            {expected_value(Field::delta_confidence, number, 0, 0) / 256.0F,
                             expected_value(Field::delta_confidence, number, 0, 1) / 256.0F});
  add_arrays(row, meta, number);
  if (meta.has_cache) row.cache = cache_of(meta, number);
  return row;
}

}  // namespace blockscope::fixture
