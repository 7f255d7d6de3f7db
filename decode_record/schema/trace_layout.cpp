#include "decode_record/schema/trace_layout.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "decode_record/schema/reuse_rule.h"

namespace blockscope {
namespace {

constexpr std::array<std::string_view, static_cast<std::size_t>(Axis::count)> kAxisNames{
    "row",
    "layer",
    "head",
    "kv_head",
    "block_position",
    "channel",
    "hidden_channel",
    "rank",
    "selected_rank",
    "tau",
    "error_sum",
    "row_kind",
    "kept_sum",
    "earlier_step",
    "pair_sum",
    "per_token",
    "model_layer",
    "side",
    "distance",
    "offset",
    "region",
    "answer_block",
    "map_layer",
    "map_head",
    "position",
    "candidate",
    "model_byte",
    "run_byte",
    "one",
    "piece_boundary",
    "piece_byte",
    "sequence",
    "hash_byte",
    "prompt_element",
    "text_byte",
    "delta",
    "insertion",
    "deletion",
    "keyframe",
    "keyframe_element",
    "prefix_element",
    "revocation",
    "query_range",
    "key_range",
    "value_range",
    "draft_cost"};

constexpr bool table_is_in_field_order() {
  for (std::size_t i = 0; i < kNumFields; ++i) {
    if (static_cast<std::size_t>(kDatasets[i].field) != i) return false;
  }
  return true;
}
static_assert(table_is_in_field_order());

// Columns are read by ranges of rows. Small chunks keep a short trace small, and 1,024 rows of a
// scalar cost one disk read.
constexpr std::size_t kColumnChunkBytes = 64U << 10U;
constexpr std::size_t kColumnChunkRows = 1024;

}  // namespace

const DatasetSpec& spec_of(Field field) { return kDatasets.at(static_cast<std::size_t>(field)); }

std::string_view to_string(Axis axis) { return kAxisNames.at(static_cast<std::size_t>(axis)); }

bool exists_in(const DatasetSpec& spec, const TraceMeta& meta) {
  const auto at_least = [&meta](RecordLevel level) { return meta.level >= level; };
  switch (spec.exists) {
    case Exists::always:
      return true;
    case Exists::since_read:
      return meta.has_since_read;
    case Exists::summary:
      return at_least(RecordLevel::summary);
    case Exists::sets:
      return at_least(RecordLevel::sets) && meta.set_size > 0;
    case Exists::outputs:
      return at_least(RecordLevel::outputs);
    case Exists::full:
      return at_least(RecordLevel::full);
    case Exists::sets_full:
      return at_least(RecordLevel::full) && meta.set_size > 0;
    case Exists::set_norms:
      return at_least(RecordLevel::sets) && meta.set_size > 0 && meta.has_set_norms;
    case Exists::selected:
      return at_least(RecordLevel::summary) && meta.selected_size > 0;
    case Exists::residual:
      return at_least(RecordLevel::outputs) && meta.has_residual;
    case Exists::lse_residual:
      return at_least(RecordLevel::summary) && meta.has_residual;
    case Exists::shadow:
      return at_least(RecordLevel::summary) && meta.has_shadow;
    case Exists::shadow_outputs:
      return at_least(RecordLevel::outputs) && meta.has_shadow;
    case Exists::spread:
      return at_least(RecordLevel::summary) && !meta.regions.empty();
    case Exists::answer_blocks:
      return at_least(RecordLevel::summary) && !meta.regions.empty() && meta.has_answer_blocks;
    case Exists::kept_pair:
      return at_least(RecordLevel::summary) && meta.has_kept_pair;
    case Exists::continuous:
      return meta.continuous();
    case Exists::step_pairs:
      return at_least(RecordLevel::summary) && meta.pair_steps > 0;
    case Exists::prompt_regions:
      return at_least(RecordLevel::summary) && meta.regions.size() > kRegionNames.size();
    case Exists::intervened:
      return at_least(RecordLevel::summary) && meta.has_interventions;
    case Exists::maps:
      return at_least(RecordLevel::summary) && !meta.map_layers.empty();
    case Exists::router:
      return at_least(RecordLevel::summary) && meta.experts_per_token > 0;
    case Exists::cache:
      return meta.has_cache;
    case Exists::ragged:
      return meta.ragged();
    case Exists::model_layers:
      return meta.has_cache || meta.ragged();
    case Exists::revocations:
      return meta.has_revocations;
    case Exists::kl:
      return meta.has_kl;
    case Exists::draft:
      return meta.has_draft;
    case Exists::draft_cost:
      return !meta.draft_cost.empty();
    case Exists::candidates:
      return meta.draft_candidates > 0;
    case Exists::staleness:
      return at_least(RecordLevel::summary) && meta.has_cache && meta.has_shadow;
  }
  return false;
}

bool is_virtual(const DatasetSpec& spec) {
  return spec.storage == Storage::row || spec.storage == Storage::row_layer ||
         spec.storage == Storage::column_layer;
}

std::int64_t axis_length(Axis axis, const TraceMeta& meta) {
  const auto size = [](const auto& values) { return static_cast<std::int64_t>(values.size()); };
  switch (axis) {
    case Axis::layer:
      return size(meta.layers);
    case Axis::head:
      return size(meta.heads);
    case Axis::kv_head:
      return size(meta.kv_heads);
    case Axis::block_position:
      return meta.block_length;
    case Axis::channel:
      return meta.channels();
    case Axis::hidden_channel:
      return meta.hidden_size;
    case Axis::rank:
      return meta.set_size;
    case Axis::selected_rank:
      return meta.selected_size;
    case Axis::tau:
      return size(kReuseTaus);
    case Axis::error_sum:
      return 4;
    case Axis::row_kind:
      return size(kRowKinds);
    case Axis::kept_sum:
      return kKeptSums;
    case Axis::earlier_step:
      return meta.pair_steps;
    case Axis::pair_sum:
      return kPairSums;
    case Axis::per_token:
      return meta.experts_per_token;
    case Axis::model_layer:
      return meta.num_layers;
    case Axis::side:
      return 3;
    case Axis::distance:
      return meta.distance_bins * (meta.bidirectional ? 2 : 1);
    case Axis::offset:
      return 2 * meta.block_length - 1;
    case Axis::region:
      return size(meta.regions);
    case Axis::answer_block:
      return kAnswerBlocks;
    case Axis::map_layer:
      return size(meta.map_layers);
    case Axis::map_head:
      return size(meta.map_heads);
    case Axis::position:
      return meta.map_positions;
    case Axis::candidate:
      return meta.draft_candidates;
    case Axis::model_byte:
      return size(meta.model_json);
    case Axis::run_byte:
      return size(meta.run_json);
    case Axis::one:
      return 1;
    case Axis::piece_boundary:
      return size(meta.pieces) + 1;
    case Axis::piece_byte: {
      std::int64_t bytes = 0;
      for (const std::string& piece : meta.pieces) bytes += size(piece);
      return bytes;
    }
    case Axis::hash_byte:
      return size(PromptHash{});
    case Axis::draft_cost:
      return size(meta.draft_cost);
    default:
      throw std::logic_error("axis_length: the axis grows");
  }
}

std::size_t element_size(const DatasetSpec& spec, const TraceMeta& meta) {
  switch (spec.type) {
    case ElementType::u8:
      return 1;
    case ElementType::i64:
      return 8;
    case ElementType::array:
      return meta.array_type == ArrayType::bf16 ? 2 : 4;
    case ElementType::f16:
      return 2;
    case ElementType::i32:
    case ElementType::f32:
      break;
  }
  return 4;
}

std::vector<std::int64_t> shape_of(const DatasetSpec& spec, const TraceMeta& meta) {
  std::vector<std::int64_t> shape(spec.rank);
  for (std::size_t i = 0; i < spec.rank; ++i) {
    shape[i] = i == 0 && spec.extendible() ? 0 : axis_length(spec.axes[i], meta);
  }
  return shape;
}

std::vector<std::int64_t> chunk_of(const DatasetSpec& spec, const TraceMeta& meta) {
  std::vector<std::int64_t> chunk = shape_of(spec, meta);
  chunk.at(0) = 1;
  const bool by_layer = spec.storage == Storage::row_layer || spec.storage == Storage::column_layer;
  if (by_layer) chunk.at(1) = 1;
  if (spec.storage == Storage::column || spec.storage == Storage::column_layer) {
    std::size_t one_row = element_size(spec, meta);
    for (const std::int64_t length : chunk) one_row *= static_cast<std::size_t>(length);
    std::size_t rows = kColumnChunkRows;
    while (rows > 1 && rows * one_row > kColumnChunkBytes) rows /= 2;
    chunk[0] = static_cast<std::int64_t>(rows);
  }
  return chunk;
}

std::size_t row_bytes(const DatasetSpec& spec, const TraceMeta& meta) {
  std::size_t bytes = element_size(spec, meta);
  for (std::size_t i = 1; i < spec.rank; ++i) {
    bytes *= static_cast<std::size_t>(axis_length(spec.axes[i], meta));
  }
  return bytes;
}

LayerPart layer_part(const DatasetSpec& spec, const TraceMeta& meta, std::size_t slot) {
  std::size_t rows = 1;
  const std::size_t element = element_size(spec, meta);
  LayerPart own{1, element, element};
  bool of_layer = false;
  for (std::size_t i = 1; i < spec.rank; ++i) {
    const Axis axis = spec.axes[i];
    const auto length = static_cast<std::size_t>(axis_length(axis, meta));
    if (axis == Axis::layer) {
      of_layer = true;
    } else if (axis == Axis::channel) {
      own.padded_bytes *= length;
      own.own_bytes *= static_cast<std::size_t>(meta.channels_at(slot));
    } else {
      rows *= axis == Axis::kv_head ? meta.kv_slots_at(slot) : length;
    }
  }
  if (!of_layer) return {1, row_bytes(spec, meta), row_bytes(spec, meta)};
  own.rows = rows;
  return own;
}

void drop_padding(std::byte* values, const LayerPart& own) {
  if (own.padded_bytes == own.own_bytes) return;
  for (std::size_t row = 1; row < own.rows; ++row) {
    std::memmove(values + row * own.own_bytes, values + row * own.padded_bytes, own.own_bytes);
  }
}

StepLimits step_limits(const TraceMeta& meta, std::int64_t token, float confidence,
                       std::int64_t most) {
  constexpr std::int64_t kNone = -1;
  if (!meta.noise_canvas) return {token == meta.mask_token_id ? kNone : 0, most};
  const bool noise = token == meta.mask_token_id || (std::isinf(confidence) && confidence < 0);
  return noise ? StepLimits{kNone, kNone} : StepLimits{0, most};
}

std::int64_t file_bytes(const TraceMeta& meta, const TraceExtent& extent) {
  // Measured with HDF5 1.10 (test_capture_scale.py): an object header with attributes, scales and
  // the first block of the chunk index, and the index itself with 8 bytes per chunk in growing
  // blocks.
  constexpr std::int64_t kObject = 5000;
  constexpr std::int64_t kIndexEntry = 12;
  std::int64_t bytes = 2 * kObject;
  for (const DatasetSpec& spec : kDatasets) {
    if (!exists_in(spec, meta)) continue;
    bytes += kObject;
    if (!spec.extendible()) {
      bytes += static_cast<std::int64_t>(row_bytes(spec, meta)) * axis_length(spec.axes[0], meta);
      continue;
    }
    const std::vector<std::int64_t> chunk = chunk_of(spec, meta);
    auto chunk_bytes = static_cast<std::int64_t>(element_size(spec, meta));
    std::int64_t chunks_across = 1;
    for (std::size_t i = 0; i < spec.rank; ++i) {
      chunk_bytes *= chunk[i];
      if (i > 0)
        chunks_across *= axis_length(spec.axes[i], meta) / std::max<std::int64_t>(chunk[i], 1);
    }
    const bool arrays = spec.storage == Storage::row || spec.storage == Storage::row_layer;
    const bool map = spec.field == Field::map_weight;
    const std::int64_t length = map      ? extent.map_rows
                                : arrays ? extent.recorded_rows
                                         : extent.lengths[static_cast<std::size_t>(spec.axes[0])];
    const std::int64_t chunks = (length + chunk[0] - 1) / chunk[0] * chunks_across;
    bytes += chunks * (chunk_bytes + kIndexEntry);
  }
  return bytes;
}

std::int64_t recorded_row_bytes(const TraceMeta& meta) {
  std::int64_t bytes = 0;
  for (const DatasetSpec& spec : kDatasets) {
    if (spec.per_row() && exists_in(spec, meta)) {
      bytes += static_cast<std::int64_t>(row_bytes(spec, meta));
    }
  }
  return bytes;
}

}  // namespace blockscope
