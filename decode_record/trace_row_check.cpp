#include "decode_record/trace_row_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

namespace blockscope {
namespace {

constexpr std::int64_t kLargestInt32 = std::numeric_limits<std::int32_t>::max();

void check_slice(const ArraySlice& slice, const TraceRow& row, const TraceMeta& meta) {
  const DatasetSpec& spec = spec_of(slice.field);
  const bool prefix = spec.storage == Storage::column_layer;
  const bool recorders = prefix || (spec.per_row() && spec.field >= Field::prediction_token &&
                                    spec.field != Field::prefix_end);
  if (!recorders) refuse_input(fmt::format("{}: the writer fills this dataset itself", spec.path));
  if (!exists_in(spec, meta)) {
    refuse_input(
        fmt::format("{}: not a dataset of a trace of level {}", spec.path, to_string(meta.level)));
  }
  std::size_t expected = row_bytes(spec, meta);
  if (prefix) expected *= static_cast<std::size_t>(row.prefix_length);
  if (slice.layer != kAllLayers) {
    const std::int64_t layers = axis_length(Axis::layer, meta);
    const bool has_layers = std::ranges::count(spec.axes, Axis::layer) != 0;
    if (!has_layers || slice.layer < 0 || slice.layer >= layers) {
      refuse_input(fmt::format("{}: expected a layer slot in [0, {}), got {}", spec.path,
                               has_layers ? layers : 0, slice.layer));
    }
    expected /= static_cast<std::size_t>(layers);
  }
  if (slice.data.size != expected || (expected > 0 && slice.data.data == nullptr)) {
    refuse_input(
        fmt::format("{}: expected {} bytes, got {}", spec.path, expected, slice.data.size));
  }
}

}  // namespace

void refuse_input(std::string_view what) {
  throw UsageError(fmt::format("trace writer: {}", what));
}

void check_row(const TraceRow& row, const TraceMeta& meta) {
  if (!row.valid.empty() && std::cmp_not_equal(row.valid.size(), meta.block_length)) {
    refuse_input(
        fmt::format("valid: expected {} positions, got {}", meta.block_length, row.valid.size()));
  }
  for (const std::int64_t value : {row.block_start, row.step, row.context_length, row.transferred,
                                   row.masks_left, row.prefix_start, row.prefix_length}) {
    if (value < 0 || value > kLargestInt32) {
      refuse_input(fmt::format("row: expected counts and positions in [0, 2^31), got {}", value));
    }
  }
  if (row.block < -1 || row.block > kLargestInt32) {
    refuse_input(fmt::format("row: expected a block of -1 or more, got {}", row.block));
  }
  std::set<std::pair<Field, std::int64_t>> seen;
  std::map<Field, int> whole;
  for (const ArraySlice& slice : row.arrays) {
    check_slice(slice, row, meta);
    whole[slice.field] += slice.layer == kAllLayers ? 1 : 0;
    if (!seen.emplace(slice.field, slice.layer).second) {
      refuse_input(fmt::format("{}: the same values are given twice", spec_of(slice.field).path));
    }
  }
  for (const auto& [field, layer] : seen) {
    if (layer != kAllLayers && whole[field] != 0) {
      refuse_input(fmt::format("{}: given both whole and by layer", spec_of(field).path));
    }
  }
}

void check_step(const TraceRow& row, std::int64_t expected) {
  if (row.step == expected) return;
  refuse_input(fmt::format("row: expected step {}, got {}", expected, row.step));
}

void check_decided(const SequenceDelta& delta, const Frame& before) {
  const std::int64_t most = before.current_step() + 1;
  const auto check = [&](const char* what, const std::vector<std::int64_t>& sources,
                         const std::vector<std::int64_t>& steps) {
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const bool masked =
          delta.decoded_tokens[static_cast<std::size_t>(sources[i])] == before.mask_token_id;
      const std::int64_t least = masked ? kUndecodedStep : 0;
      if (steps[i] >= least && steps[i] <= most) continue;
      refuse_input(fmt::format("{}: expected {} to {}, got {}", what, least, most, steps[i]));
    }
  };
  check("transfer_step", delta.transfer_src_index, delta.transfer_step);
  check("insert_step", delta.insert_src_index, delta.insert_step);
}

}  // namespace blockscope
