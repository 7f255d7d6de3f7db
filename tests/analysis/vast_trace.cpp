#include "tests/analysis/vast_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "decode_record/write/trace_writer.h"
#include "tests/analysis/sparse_writes.h"

namespace blockscope::testing {
namespace {

constexpr std::int64_t kVocabulary = 256;
constexpr std::int64_t kPrompt = 64;
constexpr std::int64_t kSetSize = 16;

std::size_t index(std::int64_t value) { return static_cast<std::size_t>(value); }

/// A fast generator: billions of values are made.
class Random {
 public:
  float operator()() {  // [0, 1)
    state_ ^= state_ << 13U;
    state_ ^= state_ >> 7U;
    state_ ^= state_ << 17U;
    return static_cast<float>(state_ >> 40U) * 0x1p-24F;
  }

 private:
  std::uint64_t state_ = 88172645463325252ULL;
};

TraceMeta make_meta(const VastTraceOptions& o) {
  TraceMeta meta;
  meta.num_layers = o.layers;
  meta.num_heads = o.heads;
  meta.num_kv_heads = o.kv_heads;
  meta.head_dim = o.head_dim;
  meta.hidden_size = o.heads * o.head_dim;
  meta.vocab_size = kVocabulary + 1;
  meta.mask_token_id = kVocabulary;
  meta.softmax_scale = 1.0 / std::sqrt(static_cast<double>(o.head_dim));
  meta.block_length = o.block_length;
  meta.level = RecordLevel::outputs;
  meta.record_everything();
  meta.set_size = kSetSize;
  meta.set_normaliser = SetNormaliser::prefix;
  meta.model_json = R"({"requested":"vast"})";
  meta.run_json = R"({"version":"test","policy":"exact"})";
  for (std::int64_t i = 0; i <= kVocabulary; ++i) meta.pieces.push_back(fmt::format("w{} ", i));
  return meta;
}

/// The arrays of one denoising row after the other.
class Arrays {
 public:
  Arrays(const VastTraceOptions& o, const TraceMeta& meta) : o_(o), meta_(meta) {}

  std::vector<ArraySlice> next(bool real, std::int64_t context, std::int64_t step) {
    std::vector<ArraySlice> slices;
    for (const Field field : {Field::attention_external, Field::attention_internal, Field::query}) {
      const std::size_t bytes = row_bytes(spec_of(field), meta_) / meta_.layers.size();
      for (std::int64_t layer = 0; layer < o_.layers; ++layer) {
        slices.push_back({field, layer, real ? vectors(field, layer, bytes / 2) : zeros(bytes)});
      }
    }
    for (const Field field : {Field::attention_lse_external, Field::attention_lse_internal}) {
      slices.push_back({field, kAllLayers, shares(field, 2.0F, 1.0F)});
    }
    slices.push_back({Field::similarity_external, kAllLayers,
                      shares(Field::similarity_external, step == 1 ? NAN : 0.9F, 0.1F)});
    slices.push_back({Field::similarity_internal, kAllLayers,
                      shares(Field::similarity_internal, step == 1 ? NAN : 0.5F, 0.4F)});
    slices.push_back({Field::external_mass, kAllLayers, shares(Field::external_mass, 0.3F, 0.4F)});
    slices.push_back({Field::set_recall, kAllLayers, shares(Field::set_recall, 0.6F, 0.4F)});
    const std::size_t sets = index(o_.layers * o_.kv_heads);
    std::vector<std::int32_t> positions;
    std::vector<float> probability;
    for (std::size_t i = 0; i < sets; ++i) {
      const auto start = static_cast<std::int64_t>(random_() * static_cast<float>(context));
      for (std::int64_t k = 0; k < kSetSize; ++k) {
        positions.push_back(static_cast<std::int32_t>((start + 3 * k) % context));
        probability.push_back(0.2F / static_cast<float>(k + 1));
      }
    }
    slices.push_back({Field::set_topk, kAllLayers, make_buffer(std::move(positions))});
    slices.push_back({Field::set_probability, kAllLayers, make_buffer(std::move(probability))});
    slices.push_back({Field::set_union_size, kAllLayers,
                      make_buffer(std::vector<std::int32_t>(sets, 2 * kSetSize))});
    return slices;
  }

 private:
  Buffer zeros(std::size_t bytes) {
    if (!zeros_ || zeros_->size() != bytes) {
      zeros_ = std::make_shared<const std::vector<std::byte>>(bytes);
    }
    return {zeros_, zeros_->data(), zeros_->size()};
  }

  /// bfloat16 vectors that resemble those of the step before.
  Buffer vectors(Field field, std::int64_t layer, std::size_t count) {
    std::vector<float>& now = state_[{field, layer}];
    const bool fresh = now.empty();
    now.resize(count);
    std::vector<std::uint16_t> words(count);
    for (std::size_t i = 0; i < count; ++i) {
      const float noise = random_() - 0.5F;
      now[i] = fresh ? noise : 0.9F * now[i] + 0.3F * noise;
      words[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(now[i]) >> 16U);
    }
    return make_buffer(std::move(words));
  }

  /// Floats in [low, low + width).
  Buffer shares(Field field, float low, float width) {
    std::vector<float> values(row_bytes(spec_of(field), meta_) / sizeof(float));
    for (float& value : values) value = low + width * random_();
    return make_buffer(std::move(values));
  }

  const VastTraceOptions& o_;
  const TraceMeta& meta_;
  Random random_;
  std::shared_ptr<const std::vector<std::byte>> zeros_;
  std::map<std::pair<Field, std::int64_t>, std::vector<float>> state_;
};

class VastWriter {
 public:
  VastWriter(const std::string& path, const VastTraceOptions& o)
      : o_(o),
        meta_(make_meta(o)),
        arrays_(o, meta_),
        writer_(path, meta_, TraceWriterOptions{.force = true}) {}

  void write() {
    for (std::int64_t s = 0; s < o_.sequences; ++s) write_sequence(s);
    writer_.finish();
  }

 private:
  TraceRow row_of(std::int64_t sequence, PassKind kind, std::int64_t block) {
    TraceRow row;
    row.sequence = sequence;
    row.pass = pass_++;
    row.kind = kind;
    row.block = block;
    row.block_start = block < 0 ? 0 : kPrompt + block * o_.block_length;
    row.context_length = row.block_start;
    row.pass_time_ns = 1'000'000;
    return row;
  }

  void write_sequence(std::int64_t s) {
    SequenceStart start;
    start.name = fmt::format("vast-{}", s);
    for (std::int64_t i = 0; i < kPrompt; ++i) start.prompt.push_back((i * 7 + s) % kVocabulary);
    start.gen_length = o_.blocks * o_.block_length;
    writer_.begin_sequence(std::move(start));
    writer_.append_row(row_of(s, PassKind::prefill, -1));
    for (std::int64_t block = 0; block < o_.blocks; ++block) {
      for (std::int64_t step = 1; step <= o_.block_length; ++step) {
        TraceRow row = row_of(s, PassKind::denoise, block);
        row.step = step;
        row.changed = step == 1 ? 0 : 1;
        row.masks_left = o_.block_length - step + 1;
        row.valid.assign(index(o_.block_length), 1);
        row.recorded = true;
        row.arrays = arrays_.next(denoised_++ < o_.real_rows, row.context_length, step);
        row.delta = make_transfer({block * o_.block_length + step - 1},
                                  {(step * 11 + block) % kVocabulary}, {0.75F});
        writer_.append_row(std::move(row));
      }
      writer_.append_row(row_of(s, PassKind::commit, block));
    }
    writer_.end_sequence(s, {FinishReason::length, "text", 1.0F});
  }

  const VastTraceOptions& o_;
  TraceMeta meta_;
  Arrays arrays_;
  TraceWriter writer_;
  std::int64_t pass_ = 0, denoised_ = 0;
};

}  // namespace

void make_vast_trace(const std::string& path, const VastTraceOptions& options) {
  leave_zeros_out_of_files();
  VastWriter(path, options).write();
}

}  // namespace blockscope::testing
