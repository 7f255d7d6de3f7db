#include "analysis/metrics/attention_map.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cmath>
#include <functional>
#include <future>
#include <limits>
#include <numeric>
#include <span>
#include <system_error>

#include "analysis/math/row_products.h"
#include "analysis/math/softmax_loops.h"
#include "analysis/metrics/matrix_choice.h"
#include "analysis/metrics/recorded_map.h"
#include "analysis/pass/exact_values.h"
#include "decode_record/base/cores.h"
#include "decode_record/base/error.h"
#include "decode_record/base/nan.h"
#include "decode_record/schema/seen_keys.h"

namespace blockscope {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();
constexpr const char* kAttentionMap = "the attention map";

/// Keys of the block of one KV head and their places in it, without those that don't exist (NaN).
struct InternalKeys {
  std::vector<std::size_t> places;
  std::vector<float> values;
};

InternalKeys internal_keys(const TraceReader& trace, std::int64_t row, std::size_t layer,
                           std::size_t kv_head) {
  const TraceMeta& meta = trace.info().meta;
  const auto all = trace.read_floats_at(Field::block_key, row, static_cast<std::int64_t>(layer));
  const auto dim = static_cast<std::size_t>(meta.channels_at(layer));
  const auto block = static_cast<std::size_t>(meta.block_length);
  InternalKeys keys;
  for (std::size_t i = 0; i < block; ++i) {
    const auto key = std::span(all).subspan((kv_head * block + i) * dim, dim);
    if (std::ranges::all_of(key, [](float x) { return std::isnan(x); })) continue;
    keys.places.push_back(i);
    keys.values.insert(keys.values.end(), key.begin(), key.end());
  }
  return keys;
}

constexpr std::size_t kKeysOfOneThread = 2048;  // a thread takes as long to start as these keys

/// A piece of work that can be divided by a count.
struct Phase {
  std::size_t count = 0;
  std::function<void(std::size_t begin, std::size_t end)> work;
};

/// Does two phases one after the other: on one thread, or in halves on two.
void in_halves(const std::array<Phase, 2>& phases, std::size_t keys) {
  if (keys < 2 * kKeysOfOneThread || available_cores() < 2) {
    for (const Phase& phase : phases) phase.work(0, phase.count);
    return;
  }
  std::barrier first_done(2);
  const auto half = [&](bool second) {
    const auto run = [second](const Phase& phase) {
      const std::size_t middle = phase.count / 2;
      second ? phase.work(middle, phase.count) : phase.work(0, middle);
    };
    try {
      run(phases[0]);
    } catch (...) {
      first_done.arrive_and_drop();  // the other half must not wait for ever
      throw;
    }
    first_done.arrive_and_wait();
    run(phases[1]);
  };
  // Joins, and passes on an exception, whichever half throws.
  std::future<void> other;
  try {
    other = std::async(std::launch::async, half, false);
  } catch (const std::system_error&) {  // no more threads may be started
    for (const Phase& phase : phases) phase.work(0, phase.count);
    return;
  }
  half(true);
  other.get();
}

/// scores[q * stride + n] = queries_q . keys_n, for chunks [first, second) of `rows` keys each.
void add_scores(std::span<const float> queries, std::size_t rows, std::span<const float> keys,
                std::size_t dim, std::pair<std::size_t, std::size_t> chunks, float* scores,
                std::size_t stride) {
  const std::size_t count = keys.size() / dim;
  std::vector<float> products(rows * rows);
  std::vector<float> last(rows * dim);
  const RowProductKernels& loops = best_row_products();
  for (std::size_t first = chunks.first * rows; first < std::min(count, chunks.second * rows);
       first += rows) {
    const std::size_t some = std::min(rows, count - first);
    const float* chunk = keys.data() + first * dim;
    if (some < rows) {
      std::copy_n(chunk, some * dim, last.begin());
      chunk = last.data();
    }
    loops.cross_f32(queries.data(), chunk, rows, dim, 1, 0, products.data());
    for (std::size_t q = 0; q < rows; ++q) {
      std::copy_n(products.data() + q * rows, some, scores + q * stride + first);
    }
  }
}

/// The scores of one query on one side of the keys.
struct Side {
  float largest;  ///< score; NaN for a NaN product; -inf without a score above it
  double sum;     ///< 0 without such a score
  double lse() const { return sum > 0.0 ? double{largest} + std::log(sum) : double{largest}; }
};

/// Replaces the products by exp(score - largest score).
Side softmax_of_side(std::span<float> products, double scale) {
  const SoftmaxLoops& loops = best_softmax_loops();
  const auto factor = static_cast<float>(scale);
  Side side{loops.largest(products.data(), products.size(), factor), 0.0};
  if (std::isnan(side.largest)) return side;
  if (side.largest == -std::numeric_limits<float>::infinity()) {
    std::ranges::fill(products, 0.0F);
    return side;
  }
  side.sum = loops.exponentials(products.data(), products.size(), factor, side.largest);
  return side;
}

/// Scores of keys that query `q` does not see become -inf.
void hide(std::span<float> scores, const AttentionMap& map, const SeenKeys& seen, std::size_t q) {
  if (seen.all()) return;
  for (std::size_t n = 0; n < scores.size(); ++n) {
    if (!seen.sees(static_cast<std::int64_t>(q), map.positions[n] - map.block_start)) {
      scores[n] = static_cast<float>(kNothing);
    }
  }
}

/// Turns the products of one query and its keys into weights over both sides.
void normalise(std::span<float> row, std::size_t num_external, double scale, double& outside,
               double& inside) {
  const auto external = row.subspan(0, num_external);
  const auto internal = row.subspan(num_external);
  const Side of_external = softmax_of_side(external, scale);
  const Side of_internal = softmax_of_side(internal, scale);
  outside = of_external.lse();
  inside = of_internal.lse();
  if (std::isnan(outside) || std::isnan(inside)) {
    std::ranges::fill(row, std::numeric_limits<float>::quiet_NaN());
    outside = inside = kNaN;
    return;
  }
  if (std::max(outside, inside) == kNothing) return;
  const auto share = [](std::span<float> side, const Side& facts, double of_all) {
    if (facts.sum == 0.0) return;
    best_softmax_loops().multiply(side.data(), side.size(), static_cast<float>(of_all / facts.sum));
  };
  share(external, of_external, 1.0 / (1.0 + std::exp(inside - outside)));
  share(internal, of_internal, 1.0 / (1.0 + std::exp(outside - inside)));
}

}  // namespace

std::size_t kv_slot_of(const TraceReader& trace, std::size_t layer, std::size_t head) {
  const TraceMeta& meta = trace.info().meta;
  const std::int64_t wanted = meta.kv_head_of(meta.layers.at(layer), meta.heads.at(head));
  const auto found = std::ranges::find(meta.kv_heads, wanted);
  if (found == meta.kv_heads.end()) {
    throw TraceError(fmt::format(
        "{}: head {} reads KV head {}, which was not recorded: expected one of {}. HINT: choose "
        "another head, or capture with all heads of the group",
        trace.info().path, meta.heads[head], wanted, fmt::join(meta.kv_heads, ",")));
  }
  return static_cast<std::size_t>(found - meta.kv_heads.begin());
}

KeysOutside keys_outside(const TraceReader& trace, std::int64_t row, std::size_t layer,
                         std::size_t kv_head) {
  if (has_maps_alone(trace)) return {external_positions(trace, row, layer), {}};
  require_field(trace, Field::prefix_key, kAttentionMap);
  TraceReader::Prefix keys =
      trace.prefix(Field::prefix_key, row, static_cast<std::int64_t>(layer), kv_head);
  if (!keys.positions.empty() && keys.positions.front() < 0) {  // they are ascending
    throw CorruptTrace(fmt::format(
        "{}:/prefix/position: row {}: expected positions from 0, got {}. HINT: the file is damaged",
        trace.info().path, row, keys.positions.front()));
  }
  return {std::move(keys.positions), std::move(keys.values)};
}

AttentionMap attention_map(const TraceReader& trace, std::int64_t row, std::size_t layer,
                           std::size_t head, const KeysOutside& outside) {
  if (has_maps_alone(trace)) return recorded_map(trace, row, layer, head, outside);
  require_field(trace, Field::query, kAttentionMap);
  require_field(trace, Field::block_key, kAttentionMap);
  const TraceMeta& meta = trace.info().meta;
  const StepColumns step = trace.steps(row, 1);
  if (step.recorded.at(0) == 0) {
    throw TraceError(
        fmt::format("{}: row {} has no arrays, because the recorder left it out. HINT: choose "
                    "another step",
                    trace.info().path, row));
  }
  const std::int64_t expected = meta.keys_at(layer, step.context_length[0]);
  if (std::ssize(outside.positions) != expected) {
    throw CorruptTrace(fmt::format(
        "{}:/prefix/position: row {}: expected {} keys, got {}. HINT: the file is damaged",
        trace.info().path, row, expected, outside.positions.size()));
  }
  const InternalKeys inside = internal_keys(trace, row, layer, kv_slot_of(trace, layer, head));
  const auto dim = static_cast<std::size_t>(meta.channels_at(layer));
  AttentionMap map;
  map.positions = outside.positions;
  map.num_external = outside.positions.size();
  map.block_start = step.block_start[0];
  map.num_queries = static_cast<std::size_t>(meta.block_length);
  for (const std::size_t place : inside.places) {
    map.positions.push_back(map.block_start + static_cast<std::int32_t>(place));
  }
  const std::size_t keys = map.num_keys();
  map.weights.resize(map.num_queries * keys);
  map.lse_external.resize(map.num_queries);
  map.lse_internal.resize(map.num_queries);

  const auto all = trace.read_floats_at(Field::query, row, static_cast<std::int64_t>(layer));
  const auto queries = std::span(all).subspan(head * map.num_queries * dim, map.num_queries * dim);
  const std::size_t chunks = (map.num_external + map.num_queries - 1) / map.num_queries;
  add_scores(queries, map.num_queries, inside.values, dim, {0, 1},
             map.weights.data() + map.num_external, keys);
  const auto products = [&](std::size_t begin, std::size_t end) {
    add_scores(queries, map.num_queries, outside.values, dim, {begin, end}, map.weights.data(),
               keys);
  };
  const SeenKeys seen = seen_keys(meta, meta.layers.at(layer));
  const auto weights_of = [&](std::size_t begin, std::size_t end) {
    for (std::size_t q = begin; q < end; ++q) {
      const auto weights = std::span(map.weights).subspan(q * keys, keys);
      if (std::isnan(queries[q * dim])) {
        std::ranges::fill(weights, std::numeric_limits<float>::quiet_NaN());
        map.lse_external[q] = map.lse_internal[q] = std::numeric_limits<double>::quiet_NaN();
        continue;
      }
      hide(weights, map, seen, q);
      normalise(weights, map.num_external, meta.softmax_scale, map.lse_external[q],
                map.lse_internal[q]);
    }
  };
  in_halves({Phase{chunks, products}, Phase{map.num_queries, weights_of}}, keys);
  return map;
}

std::vector<float> AttentionMap::mean_weights() const {
  std::vector<double> sum(num_keys());
  double terms = 0.0;
  for (std::size_t q = 0; q < num_queries; ++q) {
    if (std::isnan(lse_internal[q])) continue;
    terms += 1.0;
    for (std::size_t n = 0; n < sum.size(); ++n) sum[n] += double{weights[q * sum.size() + n]};
  }
  std::vector<float> mean(sum.size());
  std::ranges::transform(sum, mean.begin(), [&](double x) {
    return terms > 0.0 ? static_cast<float>(x / terms) : std::numeric_limits<float>::quiet_NaN();
  });
  return mean;
}

std::vector<std::string> region_names(const TraceMeta& meta) {
  if (!meta.regions.empty()) return meta.regions;
  return {kRegionNames.begin(), kRegionNames.end()};
}

MapTokens map_tokens(const TraceReader& trace, std::int64_t row, const AttentionMap& map) {
  const Frame frame = trace.frame_before(row);
  const std::vector<std::int64_t>& prompt = frame.prompts.at(0);
  const auto prompt_length = static_cast<std::int64_t>(prompt.size());
  const StepColumns step = trace.steps(row, 1);
  const std::vector<std::uint8_t> parts = trace.sequence(step.sequence.at(0)).prompt_regions;
  const SequenceRegions regions{
      RegionPlaces(region_names(trace.info().meta).size()), prompt_length, map.block_start,
      map.block_start + static_cast<std::int64_t>(map.num_queries), parts};
  MapTokens result;
  for (const std::int32_t position : map.positions) {
    const std::int64_t generated = position - prompt_length;
    std::int64_t token = -1;
    if (generated < 0) {
      token = prompt[static_cast<std::size_t>(position)];
      // A prompt may hold masks of its own, which the model fills in.
      if (token == frame.mask_token_id) token = -1;
    } else if (generated < std::ssize(frame.generated_tokens)) {
      const auto at = static_cast<std::size_t>(generated);
      if (!frame.undecided(at)) token = frame.generated_tokens[at];
    }
    result.tokens.push_back(token);
    result.regions.push_back(regions.at(position, token == -1));
  }
  return result;
}

MetricResult attention_matrix(const TraceGroup& traces, const MatrixRequest& request) {
  const TraceReader& trace = the_one_trace(traces, request);
  const TraceShape& shape = traces.shape();
  const bool maps_alone = has_maps_alone(trace);
  if (!maps_alone) require_field(trace, Field::prefix_key, request.words.matrix + " attention");
  const std::vector<std::int64_t>& map_heads = trace.info().meta.map_heads;
  const std::int64_t layer = request.layer.value_or(
      maps_alone ? trace.info().meta.map_layers.front() : shape.layers.front());
  const std::size_t slot = slot_of(shape.layers, layer, request.words.layer);
  const auto [row, where] = one_row(trace, request, [&](const StepRef& step) {
    return !maps_alone || has_recorded_map(trace, step.row);
  });
  std::vector<std::size_t> heads;
  if (request.head) {
    heads.push_back(slot_of(shape.heads, *request.head, request.words.head));
  } else {
    for (std::size_t head = 0; head < shape.heads.size(); ++head) {
      if (!maps_alone || std::ranges::find(map_heads, shape.heads[head]) != map_heads.end()) {
        heads.push_back(head);
      }
    }
  }
  AttentionMap first;
  std::vector<double> values;
  std::size_t kv_head = 0;
  KeysOutside keys;
  for (const std::size_t head : heads) {
    const std::size_t needed = kv_slot_of(trace, slot, head);
    if (values.empty() || needed != kv_head) {
      kv_head = needed;
      keys = keys_outside(trace, row, slot, kv_head);
    }
    AttentionMap map = attention_map(trace, row, slot, head, keys);
    if (!values.empty() && map.positions != first.positions) {
      throw CorruptTrace(fmt::format(
          "{}:/kv/key: row {}, layer {}: expected the same keys for all KV heads, got others for "
          "head {}. HINT: the file is damaged",
          trace.info().path, row, layer, shape.heads[head]));
    }
    if (values.empty()) values.resize(map.weights.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] += double{map.weights[i]} / static_cast<double>(heads.size());
    }
    first = std::move(map);
  }
  MetricResult result;
  result.metric = "attention";
  result.title = "Attention weights of " + where;
  result.formula = "A_ij = exp(q_i . k_j * scale - L_i)";
  result.source = "softmax attention; L is the log-sum-exp over all keys";
  result.computed_from = maps_alone ? "/map/weight" : "/query/query, /kv/key, /prefix/key";
  ResultAxis queries = numbered("position", first.num_queries, 0);
  ResultAxis columns{"key", {first.positions.begin(), first.positions.end()}, {}};
  result.arrays.push_back(
      {"attention",
       "share",
       fmt::format("layer {}, {}", layer,
                   request.head ? fmt::format("head {}", *request.head) : "mean of the heads"),
       {std::move(queries), std::move(columns)},
       std::move(values),
       {}});
  return result;
}

}  // namespace blockscope
