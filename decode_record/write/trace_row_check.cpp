#include "decode_record/write/trace_row_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

namespace blockscope {

void refuse_input(std::string_view what) {
  throw UsageError(fmt::format("trace writer: {}", what));
}

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

void check_ranges(Field field, const std::vector<PositionRange>& ranges) {
  std::int64_t free = 0;  // the earliest position at which the next range may begin
  for (const PositionRange& range : ranges) {
    if (range.start < free || range.stop <= range.start) {
      refuse_input(fmt::format("{}: expected rising ranges with gaps between, got [{}, {})",
                               spec_of(field).path, range.start, range.stop));
    }
    free = std::int64_t{range.stop} + 1;
  }
}

void check_cache(const TraceRow& row, const TraceMeta& meta) {
  const std::int64_t layers = meta.has_cache ? meta.num_layers : 0;
  if (!row.cache.empty() && std::cmp_not_equal(row.cache.size(), layers)) {
    refuse_input(
        fmt::format("cache: expected the ranges of {} layers, got {}", layers, row.cache.size()));
  }
  for (const LayerRanges& layer : row.cache) {
    check_ranges(Field::query_start, layer.query);
    check_ranges(Field::key_start, layer.key);
    check_ranges(Field::value_start, layer.value);
  }
}

}  // namespace

void check_row(const TraceRow& row, const TraceMeta& meta) {
  check_cache(row, meta);
  if (!row.revoked.empty() && !meta.has_revocations) {
    refuse_input("revoked: this trace has no /frames/revoke_*");
  }
  if (!row.valid.empty() && std::cmp_not_equal(row.valid.size(), meta.block_length)) {
    refuse_input(
        fmt::format("valid: expected {} positions, got {}", meta.block_length, row.valid.size()));
  }
  for (const std::int64_t value :
       {row.block_start, row.step, row.context_length, row.changed, row.since_read, row.rows_read,
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

void check_decided(const SequenceDelta& delta, const Frame& before, const TraceMeta& meta) {
  const std::int64_t most = before.current_step() + 1;
  const auto check = [&](const char* what, const std::vector<std::int64_t>& sources,
                         const std::vector<std::int64_t>& steps) {
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const auto source = static_cast<std::size_t>(sources[i]);
      const StepLimits limits =
          step_limits(meta, delta.decoded_tokens[source], delta.confidence[source], most);
      if (steps[i] >= limits.least && steps[i] <= limits.most) continue;
      refuse_input(
          fmt::format("{}: expected {} to {}, got {}", what, limits.least, limits.most, steps[i]));
    }
  };
  check("transfer_step", delta.transfer_src_index, delta.transfer_step);
  check("insert_step", delta.insert_src_index, delta.insert_step);
}

void add_revocations(const std::vector<RevokedToken>& revoked, const Frame& before,
                     SequenceDelta& delta) {
  for (const RevokedToken& one : revoked) {
    const auto refuse = [&](const std::string& expected, std::int64_t got) {
      refuse_input(
          fmt::format("revoked: position {}: expected {}, got {}", one.position, expected, got));
    };
    if (one.position < 0 || std::cmp_greater_equal(one.position, before.gen_length)) {
      refuse(fmt::format("a position up to {}", before.gen_length), one.position);
    }
    const std::int64_t token = before.generated_tokens[static_cast<std::size_t>(one.position)];
    if (one.token == before.mask_token_id) refuse("a token that is not the mask", one.token);
    const auto times = std::ranges::count(revoked, one.position, &RevokedToken::position);
    if (times > 1) refuse("one event of a position", times);
    if (one.token != token) refuse(fmt::format("the token {} that stands there", token), one.token);
    const auto same = std::ranges::find(delta.transfer_index, one.position);
    if (same != delta.transfer_index.end()) {  // the row may have it already, in its own order
      const auto index = static_cast<std::size_t>(same - delta.transfer_index.begin());
      const auto source = static_cast<std::size_t>(delta.transfer_src_index[index]);
      if (delta.decoded_tokens[source] == before.mask_token_id) continue;
      refuse("no other change of the position, got token", delta.decoded_tokens[source]);
    }
    const auto at = static_cast<std::ptrdiff_t>(delta.transfer_index.size());
    for (std::int64_t& source : delta.insert_src_index) ++source;  // transfers come first
    delta.transfer_index.push_back(one.position);
    delta.transfer_src_index.push_back(at);
    delta.decoded_tokens.insert(delta.decoded_tokens.begin() + at, before.mask_token_id);
    delta.confidence.insert(delta.confidence.begin() + at, kUntouchedConfidence);
    delta.transfer_step.push_back(kUndecodedStep);
  }
}

std::vector<PositionRange> ranges_of(std::span<const std::int64_t> positions) {
  std::vector<PositionRange> ranges;
  for (const std::int64_t position : positions) {
    const auto at = static_cast<std::int32_t>(position);
    if (ranges.empty() || ranges.back().stop != at) ranges.push_back({at, at});
    ++ranges.back().stop;
  }
  return ranges;
}

}  // namespace blockscope
