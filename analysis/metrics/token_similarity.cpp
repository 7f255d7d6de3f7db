#include "analysis/metrics/token_similarity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "analysis/math/cosine.h"
#include "analysis/pass/array_view.h"
#include "decode_record/base/error.h"
#include "decode_record/base/nan.h"

namespace blockscope {
namespace {

constexpr std::size_t kMemoryForSteps = std::size_t{64} << 20U;

/// One layer of a row in the layout of the file, [heads, B, dim].
struct LayerOfRow {
  std::vector<std::byte> bytes;
  std::vector<std::uint8_t> valid;  // [B]
};

class LayerReader {
 public:
  /// Throws UsageError unless the field has vectors per block position and the head exists.
  LayerReader(const TraceReader& trace, Field field, std::size_t layer,
              std::optional<std::size_t> head)
      : trace_(trace), field_(field), layer_(layer), head_(head) {
    const DatasetSpec& spec = spec_of(field);
    const TraceMeta& meta = trace.info().meta;
    const Axis last = spec.axes[spec.rank - 1];
    if (!spec.per_row() || (last != Axis::channel && last != Axis::hidden_channel)) {
      throw UsageError(
          fmt::format("{}: expected vectors per block position, such as /attention/external or "
                      "/query/query",
                      spec.path));
    }
    if (spec.rank == 5) {
      heads_ = spec.axes[2] == Axis::kv_head
                   ? meta.kv_slots_at(layer)
                   : static_cast<std::size_t>(axis_length(spec.axes[2], meta));
    }
    if (head && *head >= heads_) {
      throw UsageError(
          fmt::format("{}: expected a head slot in [0, {}), got {}", spec.path, heads_, *head));
    }
    positions_ = static_cast<std::size_t>(meta.block_length);
    bf16_ = meta.array_type == ArrayType::bf16;
    own_ = layer_part(spec, meta, layer);
    elements_ = own_.bytes() / element_size(spec, meta);
    padded_bytes_ = row_bytes(spec, meta) / std::max<std::size_t>(meta.layers.size(), 1);
  }

  std::size_t bytes_of_row() const { return own_.bytes(); }
  std::size_t columns() const { return head_ ? 1 : heads_; }

  LayerOfRow read(std::int64_t row) const {
    LayerOfRow values;
    values.bytes.resize(padded_bytes_);
    values.valid.resize(positions_);
    trace_.read_raw(field_, row, 1, static_cast<std::int64_t>(layer_), values.bytes);
    drop_padding(values.bytes.data(), own_);
    values.bytes.resize(own_.bytes());
    trace_.read_raw(Field::step_valid, row, 1, TraceReader::kAllLayersOfRow,
                    std::as_writable_bytes(std::span(values.valid)));
    return values;
  }

  /// The requested head, or all.
  ArrayView view(const LayerOfRow& values) const {
    const ArrayView all{values.bytes.data(), elements_, bf16_ ? ViewType::bf16 : ViewType::f32};
    const std::size_t size = elements_ / heads_;
    return head_ ? all.slice(*head_ * size, size) : all;
  }

 private:
  const TraceReader& trace_;
  Field field_;
  std::size_t layer_;
  std::optional<std::size_t> head_;
  std::size_t heads_ = 1, positions_ = 0, elements_ = 0;
  LayerPart own_;
  std::size_t padded_bytes_ = 0;  // in the file
  bool bf16_ = true;
};

/// Mean cosine over positions, then over the heads that have a value.
float mean_cosine(const LayerReader& reader, const LayerOfRow& a, const LayerOfRow& b) {
  std::vector<CosineSum> sums;
  sum_cosines(reader.view(a), reader.view(b), reader.columns(), a.valid, b.valid, sums);
  double total = 0.0;
  std::int64_t heads = 0;
  for (const CosineSum& sum : sums) {
    if (sum.terms == 0) continue;
    total += sum.sum / static_cast<double>(sum.terms);
    ++heads;
  }
  return heads == 0 ? kNaN : static_cast<float>(total / static_cast<double>(heads));
}

}  // namespace

SimilarityMatrix token_similarity(const TraceReader& trace, Field field, std::int64_t row_a,
                                  std::int64_t row_b, std::size_t layer,
                                  std::optional<std::size_t> head) {
  const LayerReader reader(trace, field, layer, head);
  const LayerOfRow a = reader.read(row_a);
  const LayerOfRow b = reader.read(row_b);
  SimilarityMatrix result{a.valid.size(), b.valid.size(), {}};
  cross_cosines(reader.view(a), reader.view(b), reader.columns(), a.valid, b.valid, result.values);
  return result;
}

SimilarityMatrix step_similarity(const TraceReader& trace, Field field, const BlockSteps& block,
                                 std::size_t layer, std::optional<std::size_t> head) {
  const LayerReader reader(trace, field, layer, head);
  const std::size_t steps = block.steps.size();
  SimilarityMatrix result{steps, steps, std::vector<float>(steps * steps, kNaN)};
  // Compare as many steps as fit in memory with all later ones, so a block of any length works.
  const std::size_t at_once =
      std::max<std::size_t>(kMemoryForSteps / std::max<std::size_t>(reader.bytes_of_row(), 1), 1);
  const auto read = [&](std::size_t s) {
    return block.steps[s].recorded ? std::optional(reader.read(block.steps[s].row)) : std::nullopt;
  };
  for (std::size_t first = 0; first < steps; first += at_once) {
    const std::size_t end = std::min(steps, first + at_once);
    std::vector<std::optional<LayerOfRow>> group;
    for (std::size_t s = first; s < end; ++s) group.push_back(read(s));
    for (std::size_t t = first; t < steps; ++t) {
      const std::optional<LayerOfRow> later = t < end ? std::nullopt : read(t);
      const std::optional<LayerOfRow>& b = t < end ? group[t - first] : later;
      for (std::size_t s = first; b && s < std::min(end, t + 1); ++s) {
        if (!group[s - first]) continue;
        const float mean = mean_cosine(reader, *group[s - first], *b);
        result.values[s * steps + t] = result.values[t * steps + s] = mean;
      }
    }
  }
  return result;
}

}  // namespace blockscope
