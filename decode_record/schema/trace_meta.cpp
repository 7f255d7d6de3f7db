#include "decode_record/schema/trace_meta.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "decode_record/base/error.h"
#include "decode_record/base/sha256.h"

namespace blockscope {
namespace {

constexpr std::array<std::string_view, 5> kLevelNames{"trajectory", "summary", "sets", "outputs",
                                                      "full"};
constexpr std::array<std::string_view, 5> kReasonNames{"unfinished", "length", "stop", "replayed",
                                                       "interrupted"};
// No model comes near. It keeps products of sizes in range if they come from a damaged file.
constexpr std::int64_t kLargestSize = std::int64_t{1} << 24;
// HDF5 takes chunks of less than 4 GB; a row of /map is one.
constexpr std::int64_t kLargestMapRow = std::int64_t{1} << 31;
// Blocks of video have a handful of steps.
constexpr std::int64_t kMostPairSteps = 1024;
// One day: longer than any pass, and exact in a double.
constexpr std::int64_t kLongestPassNs = std::int64_t{86'400} * 1'000'000'000;

void check_size(std::string_view name, std::int64_t value, std::int64_t smallest) {
  if (value < smallest || value > kLargestSize) {
    throw UsageError(fmt::format("trace meta: {}: expected {} to {}, got {}", name, smallest,
                                 kLargestSize, value));
  }
}

void check_selection(std::string_view name, const std::vector<std::int64_t>& chosen,
                     std::int64_t limit) {
  const bool rising = std::ranges::adjacent_find(chosen, std::greater_equal<>()) == chosen.end();
  if (chosen.empty() || !rising || chosen.front() < 0 || chosen.back() >= limit) {
    throw UsageError(
        fmt::format("trace meta: {}: expected at least one index, rising, in [0, {}), got [{}]",
                    name, limit, fmt::join(chosen, ", ")));
  }
}

/// /map belongs to recorded layers and heads, and its rows have one chunk each.
void check_maps(const TraceMeta& meta) {
  if (meta.map_layers.empty() && meta.map_heads.empty() && meta.map_positions == 0) return;
  check_selection("map_layers", meta.map_layers, meta.num_layers);
  check_selection("map_heads", meta.map_heads, meta.num_heads);
  if (!std::ranges::includes(meta.layers, meta.map_layers) ||
      !std::ranges::includes(meta.heads, meta.map_heads)) {
    throw UsageError(fmt::format(
        "trace meta: map_layers, map_heads: expected some of the recorded layers {} and heads {}, "
        "got {} and {}",
        fmt::join(meta.layers, ","), fmt::join(meta.heads, ","), fmt::join(meta.map_layers, ","),
        fmt::join(meta.map_heads, ",")));
  }
  const std::int64_t queries = static_cast<std::int64_t>(meta.map_layers.size()) *
                               static_cast<std::int64_t>(meta.map_heads.size()) * meta.block_length;
  const std::int64_t most = std::min(2 * kLargestLength, kLargestMapRow / (2 * queries));
  if (meta.map_positions < meta.block_length || meta.map_positions > most) {
    throw UsageError(
        fmt::format("trace meta: map_positions: expected {} to {} ({} bytes for {} queries of a "
                    "row), got {}. HINT: choose fewer layers or heads",
                    meta.block_length, most, kLargestMapRow, queries, meta.map_positions));
  }
}

void check_regions(const TraceMeta& meta) {
  check_size("distance_bins", meta.distance_bins, 0);
  const std::vector<std::string>& names = meta.regions;
  if (names.empty() != (meta.distance_bins == 0) || meta.distance_bins > kMostDistanceBins) {
    throw UsageError(
        fmt::format("trace meta: distance_bins: expected 1 to {} with regions, 0 without, got {} "
                    "with {} regions",
                    kMostDistanceBins, meta.distance_bins, names.size()));
  }
  // The fixed names in their places, parts of the prompt between, and an index that fits a byte.
  const RegionPlaces places(std::max(names.size(), kRegionNames.size()));
  constexpr std::size_t kParts = 2;
  bool fixed = names.empty() || (names.size() >= kRegionNames.size() && names.size() <= 256);
  for (std::size_t i = 0; fixed && !names.empty() && i < kRegionNames.size(); ++i) {
    fixed = names[i < kParts ? i : places.answer + i - kParts] == kRegionNames[i];
  }
  if (!fixed) {
    throw UsageError(fmt::format(
        "trace meta: regions: expected first, prompt, up to 250 parts, answer, decided, masks, "
        "after, got \"{}\"",
        fmt::join(names, "\", \"")));
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    const bool twice = std::find(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(i),
                                 names[i]) != names.begin() + static_cast<std::ptrdiff_t>(i);
    const bool is_fixed = i < kParts || i >= places.answer;
    if (twice || (!is_fixed && !is_part_name(names[i]))) {
      throw UsageError(fmt::format(
          "trace meta: regions: expected different names of at most {} bytes without control "
          "characters, \",\", \"=\" and \"+\", got \"{}\"",
          kMostPartNameBytes, fmt::join(names, "\", \"")));
    }
  }
}

void check_continuous(const TraceMeta& meta) {
  check_size("block_tokens", meta.block_tokens, 0);
  if (meta.pair_steps < 0 || meta.pair_steps > kMostPairSteps) {
    throw UsageError(fmt::format("trace meta: pair_steps: expected 0 to {}, got {}", kMostPairSteps,
                                 meta.pair_steps));
  }
  if (!meta.continuous()) {
    if (meta.pair_steps == 0 && meta.block_rows.empty()) return;
    throw UsageError("trace meta: block_rows, pair_steps: expected none without block_tokens");
  }
  check_selection("block_rows", meta.block_rows, meta.block_tokens);
  if (std::cmp_not_equal(meta.block_rows.size(), meta.block_length)) {
    throw UsageError(
        fmt::format("trace meta: block_rows: expected {}, as block_length says, got {}",
                    meta.block_length, meta.block_rows.size()));
  }
}

void check_candidates(const TraceMeta& meta) {
  const std::int64_t most = meta.has_draft ? meta.vocab_size : 0;
  if (meta.draft_candidates >= 0 && meta.draft_candidates <= most) return;
  throw UsageError(
      fmt::format("trace meta: draft_candidates: expected 0 to {} {}, got {}", most,
                  meta.has_draft ? "(vocab_size)" : "without a draft", meta.draft_candidates));
}

void check_draft_cost(const TraceMeta& meta) {
  const std::vector<DraftCost>& costs = meta.draft_cost;
  if (costs.empty()) return;
  if (!meta.has_draft) throw UsageError("trace meta: draft_cost: expected none without a draft");
  for (std::size_t i = 0; i < costs.size(); ++i) {
    const auto check = [i](const char* what, std::int64_t value, std::int64_t least,
                           std::int64_t most) {
      if (value >= least && value <= most) return;
      throw UsageError(
          fmt::format("trace meta: draft_cost: entry {}: {}: expected {} to {}, got {}", i, what,
                      least, most, value));
    };
    const bool last = i + 1 == costs.size();
    const std::int64_t least = i == 0 ? 1 : costs[i - 1].block_length + 1;
    check("block_length", costs[i].block_length, last ? std::max(least, meta.block_length) : least,
          i == 0 && !last ? 1 : meta.block_length);
    const std::int64_t context = costs.front().context_length;
    check("context_length", costs[i].context_length, i == 0 ? 0 : context,
          i == 0 ? kLargestSize : context);
    const std::int64_t drafts = costs[i].block_length > 1 ? 1 : 0;
    check("draft_ns", costs[i].draft_ns, drafts, drafts * kLongestPassNs);
    check("target_ns", costs[i].target_ns, 1, kLongestPassNs);
  }
}

/// Ragged layers: [num_layers] each, and the model's sizes are the largest.
void check_layers(const TraceMeta& meta) {
  const auto check = [&meta](const char* name, const std::vector<std::int64_t>& values,
                             std::int64_t least, std::int64_t largest) {
    const auto expected = static_cast<std::size_t>(meta.ragged() ? meta.num_layers : 0);
    if (values.size() != expected) {
      throw UsageError(
          fmt::format("trace meta: {}: expected {} values (one for each layer, or none in all of "
                      "layer_kv_heads, layer_head_dim and layer_window), got {}",
                      name, expected, values.size()));
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i] >= least && values[i] <= largest) continue;
      throw UsageError(fmt::format("trace meta: {}: layer {}: expected {} to {}, got {}", name, i,
                                   least, largest, values[i]));
    }
  };
  check("layer_kv_heads", meta.layer_kv_heads, 1, meta.num_kv_heads);
  check("layer_head_dim", meta.layer_head_dim, 1, meta.head_dim);
  check("layer_window", meta.layer_window, 0, kLargestLength);
  if (!meta.ragged()) return;
  for (std::size_t i = 0; i < meta.layer_kv_heads.size(); ++i) {
    if (meta.num_heads % meta.layer_kv_heads[i] == 0) continue;
    throw UsageError(
        fmt::format("trace meta: layer_kv_heads: layer {}: expected a divisor of the {} query "
                    "heads, got {}",
                    i, meta.num_heads, meta.layer_kv_heads[i]));
  }
  const auto largest = [](const char* name, const std::vector<std::int64_t>& values,
                          std::int64_t most) {
    if (std::ranges::max(values) == most) return;
    throw UsageError(fmt::format("trace meta: {}: expected the largest of its layers, {}, got {}",
                                 name, std::ranges::max(values), most));
  };
  largest("num_kv_heads", meta.layer_kv_heads, meta.num_kv_heads);
  largest("head_dim", meta.layer_head_dim, meta.head_dim);
  if (meta.continuous()) {
    throw UsageError("trace meta: layer_kv_heads: expected none in a continuous model");
  }
  if (meta.bidirectional && std::ranges::max(meta.layer_window) > 0) {
    throw UsageError("trace meta: layer_window: expected 0 in a bidirectional model");
  }
}

/// A canvas of noise has no mask, and what becomes noise again is in its frames.
void check_canvas(const TraceMeta& meta) {
  if (!meta.noise_canvas) return;
  const auto refuse = [](const char* what) {
    throw UsageError(fmt::format("trace meta: noise_canvas: expected {}", what));
  };
  if (meta.mask_token_id != -1) refuse("a mask_token_id of -1");
  if (meta.continuous()) refuse("a model of tokens, not a continuous one");
  if (meta.has_revocations) refuse("no revocations");
  if (meta.has_draft) refuse("no draft");
}

std::vector<std::int64_t> count_up(std::int64_t count) {
  std::vector<std::int64_t> result(static_cast<std::size_t>(std::max<std::int64_t>(count, 0)));
  std::iota(result.begin(), result.end(), std::int64_t{0});
  return result;
}

}  // namespace

bool is_part_name(std::string_view name) {
  return !name.empty() && name.size() <= kMostPartNameBytes &&
         name.find_first_of(",=+") == std::string_view::npos &&
         std::ranges::none_of(
             name, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }) &&
         std::ranges::find(kRegionNames, name) == kRegionNames.end();
}

std::string_view to_string(RecordLevel level) {
  return kLevelNames.at(static_cast<std::size_t>(level));
}

std::string_view to_string(FinishReason reason) {
  return kReasonNames.at(static_cast<std::size_t>(reason));
}

std::optional<FinishReason> parse_finish_reason(std::string_view name) {
  const auto found = std::ranges::find(kReasonNames, name);
  if (found == kReasonNames.end()) return std::nullopt;
  return static_cast<FinishReason>(found - kReasonNames.begin());
}

RecordLevel parse_record_level(std::string_view name) {
  const auto found = std::ranges::find(kLevelNames, name);
  if (found == kLevelNames.end()) {
    throw UsageError(fmt::format("record level: expected one of {}, got '{}'",
                                 fmt::join(kLevelNames, ", "), name));
  }
  return static_cast<RecordLevel>(found - kLevelNames.begin());
}

std::int64_t TraceMeta::channels() const {
  std::int64_t most = ragged() ? 0 : head_dim;
  for (const std::int64_t layer : layers) most = std::max(most, head_dim_of(layer));
  return most;
}

void TraceMeta::record_everything() {
  layers = count_up(num_layers);
  heads = count_up(num_heads);
  kv_heads = count_up(num_kv_heads);
}

void check_meta(const TraceMeta& meta) {
  check_size("num_layers", meta.num_layers, 1);
  check_size("num_heads", meta.num_heads, 1);
  check_size("num_kv_heads", meta.num_kv_heads, 1);
  check_size("head_dim", meta.head_dim, 1);
  check_size("hidden_size", meta.hidden_size, 1);
  check_size("vocab_size", meta.vocab_size, meta.continuous() ? 0 : 1);
  check_size("block_length", meta.block_length, 1);
  check_size("set_size", meta.set_size, 0);
  check_size("selected_size", meta.selected_size, 0);
  check_continuous(meta);
  check_regions(meta);
  check_maps(meta);
  check_size("experts_per_token", meta.experts_per_token, 0);
  check_size("num_experts", meta.num_experts, 0);
  if (meta.experts_per_token > meta.num_experts ||
      (meta.experts_per_token == 0) != (meta.num_experts == 0)) {
    throw UsageError(fmt::format(
        "trace meta: experts_per_token: expected up to the {} of num_experts, or 0 of both, got {}",
        meta.num_experts, meta.experts_per_token));
  }
  if (meta.num_heads % meta.num_kv_heads != 0) {
    throw UsageError(
        fmt::format("trace meta: num_heads: expected a multiple of num_kv_heads {}, "
                    "got {}",
                    meta.num_kv_heads, meta.num_heads));
  }
  check_layers(meta);
  check_canvas(meta);
  if (meta.mask_token_id < -1 || meta.mask_token_id >= kLargestSize) {
    throw UsageError(fmt::format("trace meta: mask_token_id: expected -1 or a token id, got {}",
                                 meta.mask_token_id));
  }
  if (!std::isfinite(meta.softmax_scale) || meta.softmax_scale <= 0.0) {
    throw UsageError(fmt::format("trace meta: softmax_scale: expected a positive number, got {}",
                                 meta.softmax_scale));
  }
  check_draft_cost(meta);
  check_candidates(meta);
  check_selection("layers", meta.layers, meta.num_layers);
  check_selection("heads", meta.heads, meta.num_heads);
  check_selection("kv_heads", meta.kv_heads, meta.num_kv_heads);
  if (!meta.pieces.empty() && std::cmp_greater(meta.pieces.size(), kLargestSize)) {
    throw UsageError(fmt::format("trace meta: pieces: expected at most {}, got {}", kLargestSize,
                                 meta.pieces.size()));
  }
}

PromptHash hash_prompt(std::span<const std::int64_t> tokens) {
  Sha256 hash;
  for (const std::int64_t token : tokens) {
    std::array<std::uint8_t, 8> bytes;
    for (std::size_t i = 0; i < 8; ++i) {
      bytes[i] = static_cast<std::uint8_t>(static_cast<std::uint64_t>(token) >> (8 * i));
    }
    hash.update(bytes);
  }
  return hash.finish();
}

std::string to_hex(const PromptHash& hash) { return fmt::format("{:02x}", fmt::join(hash, "")); }

}  // namespace blockscope
