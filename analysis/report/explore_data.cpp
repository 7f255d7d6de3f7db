#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "analysis/figures/palette.h"
#include "analysis/metrics/token_similarity.h"
#include "analysis/pass/exact_values.h"
#include "analysis/report/explore.h"
#include "analysis/report/explore_attention.h"
#include "analysis/report/explore_curves.h"
#include "analysis/report/explore_values.h"
#include "analysis/report/trajectory.h"
#include "decode_record/base/error.h"

namespace blockscope {
namespace {

using nlohmann::json;

json confidence_json(float confidence) {
  if (!std::isfinite(confidence)) return nullptr;
  return std::round(double{confidence} * 1000.0) / 1000.0;
}

/// All that steps did at a position: step, token, confidence and kind of each, as a ChangeKind.
json events_json(const TrajectoryPosition& item, PageTexts& texts) {
  json events = json::array();
  for (const TrajectoryEvent& event : item.events) {
    events.push_back({event.step,
                      event.token < 0 ? -1 : static_cast<std::int64_t>(texts.index(event.token)),
                      confidence_json(event.confidence), static_cast<int>(event.kind)});
  }
  return events;
}

/// How one block was decoded: by position its token, step and confidence. Positions that steps
/// changed more than once have all changes in `events`. `cost` grows by the values held.
json block_json(const TraceReader& trace, const BlockSteps& block, PageTexts& texts,
                std::size_t& cost) {
  const TrajectoryBlock trajectory = trajectory_of(trace, block);
  json tokens = json::array();
  json steps = json::array();
  json confidences = json::array();
  json positions = json::array();
  json events = json::object();
  for (std::size_t i = 0; i < trajectory.positions.size(); ++i) {
    const TrajectoryPosition& item = trajectory.positions[i];
    if (!item.plain()) {
      events[std::to_string(i)] = events_json(item, texts);
      cost += item.events.size();
    }
    positions.push_back(item.position);
    tokens.push_back(item.token < 0 ? -1 : static_cast<std::int64_t>(texts.index(item.token)));
    steps.push_back(item.step);
    confidences.push_back(confidence_json(item.confidence));
  }
  return {{"sequence", block.sequence}, {"block", block.block}, {"steps", trajectory.num_steps},
          {"positions", positions},     {"tokens", tokens},     {"decided", steps},
          {"confidence", confidences},  {"events", events}};
}

json sequence_json(const TraceReader& trace, std::int64_t index) {
  const SequenceInfo sequence = trace.sequence(index);
  json facts = json::array();
  for (const auto& [name, value] : sequence_facts(trace, sequence, {})) {
    facts.push_back({name, printable_utf8(value)});
  }
  return {{"sequence", index}, {"name", printable_utf8(sequence.name)}, {"facts", facts}};
}

/// Blocks in the order in which they get a share of the page: the shown one, then the others of
/// its sequence, then the rest.
std::vector<BlockSteps> by_interest(const std::vector<BlockSteps>& blocks,
                                    const PictureChoice& choice) {
  std::vector<BlockSteps> sorted = blocks;
  if (choice.blocks.empty()) return sorted;
  const BlockSteps& shown = choice.blocks[choice.block];
  std::ranges::stable_sort(sorted, {}, [&](const BlockSteps& block) {
    if (block.sequence != shown.sequence) return 2;
    return block.block == shown.block ? 0 : 1;
  });
  return sorted;
}

/// The heatmaps of one layer and head (unset: all heads) of the shown block.
json heatmaps_of(const TraceReader& trace, const BlockSteps& block,
                 const std::vector<StepPair>& pairs, std::size_t layer,
                 std::optional<std::size_t> head) {
  json token = json::array();
  json step = json::array();
  for (const Field field : {exact_fields(trace).external, Field::attention_internal}) {
    for (const StepPair& pair : pairs) {
      token.push_back(coded(
          token_similarity(trace, field, pair.first.row, pair.second.row, layer, head).values));
    }
    step.push_back(coded(step_similarity(trace, field, block, layer, head).values));
  }
  return {{"token", token}, {"step", step}};
}

json heatmaps_by_head(const TraceReader& trace, const PictureChoice& choice,
                      const ExploreLimits& limits, json& left_out) {
  const TraceMeta& meta = trace.info().meta;
  if (choice.blocks.empty() || meta.level < RecordLevel::outputs) return nullptr;
  const BlockSteps& block = choice.blocks[choice.block];
  const std::vector<StepPair> pairs = shown_pairs(block, choice.heatmap.pairs);
  if (pairs.empty()) return nullptr;
  json steps = json::array();
  for (const StepPair& pair : pairs) steps.push_back({pair.first.step, pair.second.step});
  const auto positions = static_cast<std::size_t>(meta.block_length);
  const std::size_t cells =
      2 * (pairs.size() * positions * positions + block.steps.size() * block.steps.size());
  // All heads together first, then single heads, those of the shown layer before the others.
  std::vector<std::pair<std::size_t, std::optional<std::size_t>>> wanted;
  for (std::size_t layer = 0; layer < meta.layers.size(); ++layer) wanted.push_back({layer, {}});
  const auto shown = static_cast<std::size_t>(choice.heatmap.layer_slot);
  for (std::size_t i = 0; i < meta.layers.size(); ++i) {
    const std::size_t layer = i == 0 ? shown : i <= shown ? i - 1 : i;
    for (std::size_t head = 0; head < meta.heads.size(); ++head) wanted.push_back({layer, head});
  }
  json maps = json::object();
  const std::size_t count =
      std::min(wanted.size(), limits.cosines / std::max<std::size_t>(1, cells));
  try {
    for (std::size_t i = 0; i < count; ++i) {
      const auto& [layer, head] = wanted[i];
      maps[choice_key(layer, head)] = heatmaps_of(trace, block, pairs, layer, head);
    }
  } catch (const TraceError&) {
    return nullptr;  // captured with a policy that leaves no exact values; the page says so
  }
  if (count < wanted.size()) {
    left_out.push_back(fmt::format("heatmaps of {} of {} choices of layer and head",
                                   wanted.size() - count, wanted.size()));
  }
  return {{"pairs", steps}, {"block", block.block}, {"sequence", block.sequence}, {"maps", maps}};
}

}  // namespace

json explore_data(const TraceGroup& traces, const std::vector<BlockSteps>& blocks,
                  const PictureChoice& choice, const ReportMetrics& metrics,
                  const ExploreLimits& limits) {
  const TraceReader& trace = traces.trace(0);
  const TraceMeta& meta = trace.info().meta;
  if (choice.blocks.empty()) return nullptr;
  PageTexts texts(trace);
  json left_out = json::array();
  std::vector<BlockSteps> held;
  std::map<std::int64_t, std::map<std::int32_t, json>> decoded;  // by sequence and block
  std::size_t positions = 0;
  for (const BlockSteps& block : by_interest(blocks, choice)) {
    positions += static_cast<std::size_t>(meta.block_length);
    if (!decoded.contains(block.sequence)) positions += TrajectoryLimits().prompt_tokens;
    if (!held.empty() && positions > limits.positions) break;
    try {
      decoded[block.sequence][block.block] = block_json(trace, block, texts, positions);
    } catch (const CorruptTrace&) {
      throw;
    } catch (const TraceError&) {
      continue;  // inserts or deletes positions
    }
    held.push_back(block);
  }
  if (held.size() < blocks.size()) {
    left_out.push_back(fmt::format("{} of {} blocks", blocks.size() - held.size(), blocks.size()));
  }
  if (held.empty()) return nullptr;
  json data;
  const AttentionOverText attention =
      attention_over_text(trace, held, choice, metrics.find("heads"), limits.weights, texts);
  if (!attention.left_out.empty()) left_out.push_back(attention.left_out);
  data["attention"] = attention.json;
  data["heatmaps"] = heatmaps_by_head(trace, choice, limits, left_out);
  std::vector<std::string> too_large;
  data["curves"] = curves_by_head(metrics, limits.points, too_large);
  for (const std::string& figure : too_large) {
    left_out.push_back(fmt::format("the curves of \"{}\" by layer and head", figure));
  }
  for (const auto& [sequence, blocks_of] : decoded) {
    if (blocks_of.empty()) continue;
    data["sequences"].push_back(sequence_json(trace, sequence));
    for (const auto& [index, block] : blocks_of) data["blocks"].push_back(block);
  }
  data["layers"] = meta.layers;
  data["heads"] = meta.heads;
  data["kv_heads"] = meta.kv_heads;
  data["heads_per_kv_head"] = json::array();  // of each recorded layer
  for (const std::int64_t layer : meta.layers) {
    data["heads_per_kv_head"].push_back(meta.group_size(layer));
  }
  const BlockSteps& shown = choice.blocks[choice.block];
  data["shown"] = {{"sequence", shown.sequence},
                   {"block", shown.block},
                   {"layer", meta.layers[static_cast<std::size_t>(choice.heatmap.layer_slot)]}};
  if (choice.heatmap.head_slot) {
    data["shown"]["head"] = meta.heads[static_cast<std::size_t>(*choice.heatmap.head_slot)];
  }
  data["texts"] = texts.texts();
  data["ends"] = texts.ends();
  data["viridis"] = kViridis;
  data["left_out"] = left_out;
  return data;
}

}  // namespace blockscope
