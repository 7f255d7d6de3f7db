#include "analysis/metrics/recorded_map.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "decode_record/base/error.h"
#include "decode_record/base/nan.h"

namespace blockscope {
namespace {

/// The place of a recorded layer or head among those of /map.
std::size_t map_slot(const TraceReader& trace, const std::vector<std::int64_t>& all,
                     std::int64_t wanted, const char* what) {
  const auto found = std::ranges::find(all, wanted);
  if (found == all.end()) {
    throw TraceError(fmt::format(
        "{}: the weights of {} {} were not recorded: expected one of {}. HINT: choose one of them, "
        "or capture with --record full",
        trace.info().path, what, wanted, fmt::join(all, ",")));
  }
  return static_cast<std::size_t>(found - all.begin());
}

}  // namespace

bool has_maps_alone(const TraceReader& trace) {
  return !trace.has(Field::prefix_key) && trace.has(Field::map_weight);
}

std::vector<std::int32_t> external_positions(const TraceReader& trace, std::int64_t row,
                                             std::size_t layer) {
  const TraceMeta& meta = trace.info().meta;
  const StepColumns step = trace.steps(row, 1);
  std::vector<std::int32_t> positions;
  const std::int32_t context = step.context_length.at(0);
  const std::int64_t first = meta.first_key(meta.layers.at(layer), context);
  for (auto i = static_cast<std::int32_t>(first); i < context; ++i) {
    const bool after = meta.bidirectional && i >= step.block_start.at(0);
    positions.push_back(after ? i + static_cast<std::int32_t>(meta.block_length) : i);
  }
  return positions;
}

bool has_recorded_map(const TraceReader& trace, std::int64_t row) {
  const std::vector<float> all =
      trace.read_floats_at(Field::map_weight, row, TraceReader::kAllLayersOfRow);
  return std::ranges::any_of(all, [](float x) { return !std::isnan(x); });
}

AttentionMap recorded_map(const TraceReader& trace, std::int64_t row, std::size_t layer,
                          std::size_t head, const KeysOutside& outside) {
  const TraceMeta& meta = trace.info().meta;
  const std::size_t slot =
      map_slot(trace, meta.map_layers, meta.layers.at(layer), "layer") * meta.map_heads.size() +
      map_slot(trace, meta.map_heads, meta.heads.at(head), "head");
  const auto positions = static_cast<std::size_t>(meta.map_positions);
  const std::vector<float> all =
      trace.read_floats_at(Field::map_weight, row, TraceReader::kAllLayersOfRow);
  AttentionMap map;
  map.num_queries = static_cast<std::size_t>(meta.block_length);
  const auto weights =
      std::span(all).subspan(slot * map.num_queries * positions, map.num_queries * positions);
  if (std::ranges::any_of(weights, [](float x) { return x < 0.0F || x > 1.0F; })) {
    throw CorruptTrace(fmt::format(
        "{}:/map/weight: row {}: expected weights in [0, 1], got others. HINT: the file "
        "is damaged",
        trace.info().path, row));
  }
  if (std::ranges::all_of(weights, [](float x) { return std::isnan(x); })) {
    throw TraceError(fmt::format(
        "{}: row {} has no recorded weights. HINT: choose a step that --record-maps named",
        trace.info().path, row));
  }
  map.positions = outside.positions;
  map.num_external = outside.positions.size();
  map.block_start = trace.steps(row, 1).block_start.at(0);
  const auto at = [&](std::size_t query, std::int32_t position) {
    return weights[query * positions + static_cast<std::size_t>(position)];
  };
  for (std::size_t i = 0; i < map.num_queries; ++i) {
    const auto position = map.block_start + static_cast<std::int32_t>(i);
    bool there = false;
    for (std::size_t q = 0; q < map.num_queries && std::cmp_less(position, positions); ++q) {
      there = there || !std::isnan(at(q, position));
    }
    if (there) map.positions.push_back(position);
  }
  if (std::ranges::any_of(map.positions, [&](std::int32_t p) {
        return p < 0 || std::cmp_greater_equal(p, positions);
      })) {
    throw CorruptTrace(fmt::format(
        "{}:/map/weight: row {}: expected keys in {} positions, got others. HINT: the file is "
        "damaged",
        trace.info().path, row, positions));
  }
  const auto lses = [&](Field field) {
    const auto floats = trace.read_floats_at(field, row, static_cast<std::int64_t>(layer));
    const auto of_head = std::span(floats).subspan(head * map.num_queries, map.num_queries);
    return std::vector<double>(of_head.begin(), of_head.end());
  };
  map.lse_external = lses(Field::attention_lse_external);
  map.lse_internal = lses(Field::attention_lse_internal);
  for (std::size_t q = 0; q < map.num_queries; ++q) {
    for (const std::int32_t position : map.positions) map.weights.push_back(at(q, position));
    if (map.positions.empty() || !std::isnan(map.weights.back())) continue;
    map.lse_external[q] = map.lse_internal[q] = kNaN;
  }
  return map;
}

}  // namespace blockscope
