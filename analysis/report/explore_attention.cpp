#include "analysis/report/explore_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>

#include "analysis/figures/number_text.h"
#include "analysis/metrics/attention_map.h"
#include "analysis/metrics/block_decisions.h"
#include "analysis/report/attention_html.h"
#include "analysis/report/trajectory.h"

namespace blockscope {
namespace {

using nlohmann::json;

constexpr std::size_t kQueriesPerStep = 4;

struct Head {
  std::size_t layer = 0, head = 0;  // recorded slots
};

/// All heads with weights: the chosen one, the best of each layer, then the others. Better: finds
/// more copied tokens; without such heads, spreads its weights less.
std::vector<Head> heads_by_interest(const TraceReader& trace, const PictureChoice& choice,
                                    const MetricResult* heads) {
  const TraceMeta& meta = trace.info().meta;
  std::vector<std::pair<std::array<double, 3>, Head>> ranked;
  for (std::size_t layer = 0; layer < meta.layers.size(); ++layer) {
    std::size_t best = ranked.size();
    for (std::size_t head = 0; head < meta.heads.size(); ++head) {
      if (!has_weights(trace, layer, head)) continue;
      const auto score = [&](const char* name, double sign) {
        const double value = heads == nullptr ? std::nan("") : heads->array(name).at({layer, head});
        return std::isfinite(value) ? sign * value : -std::numeric_limits<double>::infinity();
      };
      const bool chosen = choice.heatmap.head_slot &&
                          static_cast<std::size_t>(choice.heatmap.layer_slot) == layer &&
                          static_cast<std::size_t>(*choice.heatmap.head_slot) == head;
      ranked.push_back(
          {{chosen ? 2.0 : 0.0, score("retrieval", 1.0), score("diffuse", -1.0)}, {layer, head}});
      if (ranked.back().first > ranked[best].first) best = ranked.size() - 1;
    }
    if (best < ranked.size()) ranked[best].first[0] = std::max(1.0, ranked[best].first[0]);
  }
  std::ranges::stable_sort(ranked, std::ranges::greater{}, &decltype(ranked)::value_type::first);
  std::vector<Head> sorted;
  for (const auto& [rank, head] : ranked) sorted.push_back(head);
  return sorted;
}

/// A step with weights, and the positions of the block that it decides.
struct DecidingStep {
  StepRef step;
  std::vector<std::size_t> positions;  // in the block, at most kQueriesPerStep
  std::size_t keys = 0;
};

std::vector<DecidingStep> deciding_steps(const TraceReader& trace, const BlockSteps& block) {
  const BlockDecisions decisions = decisions_of(trace, block);
  const auto shift = static_cast<std::size_t>(trace.info().meta.logit_shift);
  std::vector<DecidingStep> steps;
  for (std::size_t t = 0; t < block.steps.size(); ++t) {
    const StepRef& step = block.steps[t];
    const bool known =
        trace.has(Field::prefix_key) || trace.written(Field::map_weight, step.row, 0);
    if (!step.recorded || !known) continue;
    DecidingStep found{step, {}, 0};
    for (std::size_t p = shift; p < decisions.index.size(); ++p) {
      if (decisions.index[p] == static_cast<std::int64_t>(t)) found.positions.push_back(p);
    }
    if (found.positions.size() > kQueriesPerStep) found.positions.resize(kQueriesPerStep);
    found.keys = static_cast<std::size_t>(step.context_length) + decisions.index.size();
    if (!found.positions.empty()) steps.push_back(std::move(found));
  }
  return steps;
}

std::size_t weights_of(const std::vector<DecidingStep>& steps) {
  std::size_t count = 0;
  for (const DecidingStep& step : steps) count += step.keys * step.positions.size();
  return count;
}

/// Positions as a list, or [first] where each is one more than the one before.
json places_of(std::span<const std::int32_t> positions) {
  for (std::size_t i = 1; i < positions.size(); ++i) {
    if (positions[i] != positions[i - 1] + 1)
      return std::vector(positions.begin(), positions.end());
  }
  json places = json::array();
  if (!positions.empty()) places.push_back(positions.front());
  return places;
}

/// The weights of some heads at one step: [position][head].
json step_json(const TraceReader& trace, const DecidingStep& step, std::span<const Head> heads,
               json& keys, PageTexts& texts) {
  const auto shift = static_cast<std::size_t>(trace.info().meta.logit_shift);
  json queries = json::array();
  for (const std::size_t p : step.positions) {
    queries.push_back({{"position", step.step.block_start + static_cast<std::int64_t>(p)},
                       {"query", step.step.block_start + static_cast<std::int64_t>(p - shift)},
                       {"heads", json::object()}});
  }
  json key_list;
  for (const Head& head : heads) {
    const AttentionMap map = attention_map(
        trace, step.step.row, head.layer, head.head,
        keys_outside(trace, step.step.row, head.layer, kv_slot_of(trace, head.layer, head.head)));
    if (key_list.is_null()) {
      const MapTokens tokens = map_tokens(trace, step.step.row, map);
      json ids = json::array();
      for (const std::int64_t token : tokens.tokens) {
        ids.push_back(token < 0 ? -1 : static_cast<std::int64_t>(texts.index(token)));
      }
      // The keys outside a block are often the same at all its steps.
      const auto outside = static_cast<std::ptrdiff_t>(map.num_external);
      json shared{{"positions", places_of(std::span(map.positions).first(map.num_external))},
                  {"tokens", std::vector<json>(ids.begin(), ids.begin() + outside)}};
      if (keys.empty() || keys.back() != shared) keys.push_back(std::move(shared));
      key_list = {{"outside", keys.size() - 1},
                  {"positions", std::vector(map.positions.begin() + outside, map.positions.end())},
                  {"tokens", std::vector<json>(ids.begin() + outside, ids.end())}};
    }
    for (std::size_t i = 0; i < step.positions.size(); ++i) {
      const auto row = std::span(map.weights)
                           .subspan((step.positions[i] - shift) * map.num_keys(), map.num_keys());
      if (row.empty() || std::isnan(row.front())) continue;  // not computed by the row
      queries[i]["heads"][choice_key(head.layer, head.head)] = coded_weights(row);
    }
  }
  return {{"step", step.step.step}, {"keys", key_list}, {"queries", queries}};
}

}  // namespace

AttentionOverText attention_over_text(const TraceReader& trace,
                                      const std::vector<BlockSteps>& blocks,
                                      const PictureChoice& choice, const MetricResult* heads,
                                      std::size_t limit, PageTexts& texts) {
  if (!trace.has(Field::prefix_key) && !trace.has(Field::map_weight)) return {};
  std::vector<Head> shown = heads_by_interest(trace, choice, heads);
  if (shown.empty() || blocks.empty()) return {};
  std::vector<std::vector<DecidingStep>> steps;
  std::size_t of_sequence = 0;  // weights of one head in the blocks of the shown sequence
  std::size_t of_all = 0;
  for (const BlockSteps& block : blocks) {
    steps.push_back(deciding_steps(trace, block));
    of_all += weights_of(steps.back());
    if (block.sequence == blocks.front().sequence) of_sequence += weights_of(steps.back());
  }
  if (of_all == 0) return {};
  // The shown sequence has half of the room, so it has more heads than others.
  // Each block also has the list of its keys.
  std::size_t lists = 0;
  for (const std::vector<DecidingStep>& list : steps) lists += list.empty() ? 0 : list[0].keys;
  const std::size_t all_room = limit;
  limit -= std::min(limit / 2, lists);
  const std::size_t of_others = of_all - of_sequence;
  const std::size_t room = of_others == 0 ? limit : limit / 2;
  const std::size_t here =
      of_sequence == 0 ? 0 : std::clamp<std::size_t>(room / of_sequence, 1, shown.size());
  const std::size_t left = limit - std::min(limit, here * of_sequence);
  const std::size_t elsewhere =
      of_others == 0 ? 0 : std::clamp<std::size_t>(left / of_others, 1, shown.size());
  json found = json::array();
  json keys = json::array();
  std::size_t used = 0;
  std::size_t left_out = 0;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const std::size_t heads_here = blocks[b].sequence == blocks.front().sequence ? here : elsewhere;
    json list = json::array();
    for (const DecidingStep& step : steps[b]) {
      const std::size_t size = step.keys * step.positions.size() * heads_here;
      if (used > 0 && used + size > all_room) {
        ++left_out;
        continue;
      }
      used += size + (list.empty() ? step.keys : 0);
      list.push_back(step_json(trace, step, std::span(shown).first(heads_here), keys, texts));
    }
    if (list.empty()) continue;
    found.push_back(
        {{"sequence", blocks[b].sequence}, {"block", blocks[b].block}, {"steps", list}});
  }
  json names = json::array();
  for (const Head& head : shown) names.push_back({head.layer, head.head});
  AttentionOverText result{{{"heads", names}, {"keys", keys}, {"blocks", found}}, ""};
  const std::size_t fewest = of_others == 0 ? here : std::min(here, elsewhere);
  if (fewest < shown.size() || left_out > 0) {
    result.left_out = fmt::format(
        "the attention of {} of {} heads{}{}", shown.size() - fewest, shown.size(),
        here > fewest ? " outside the shown sequence" : "",
        left_out == 0 ? ""
                      : " and of " + counted(static_cast<std::int64_t>(left_out), "step", "steps"));
  }
  return result;
}

}  // namespace blockscope
