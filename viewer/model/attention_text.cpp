#include "viewer/model/attention_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace blockscope {

std::size_t AttentionText::bytes() const {
  std::size_t sum = sizeof(*this) + (map.weights.size() + mean.size()) * sizeof(float) +
                    map.positions.size() * (2 * sizeof(std::int32_t) + sizeof(std::size_t) + 1);
  for (const std::string& text : texts) sum += sizeof(text) + text.capacity();
  return sum;
}

std::span<const float> AttentionText::weights(std::optional<std::size_t> query) const {
  if (!query || *query >= map.num_queries) return mean;
  return std::span(map.weights).subspan(*query * map.num_keys(), map.num_keys());
}

std::vector<double> AttentionText::masses(std::span<const float> weights) const {
  std::vector<double> sums(region_names.size());
  for (std::size_t n = 0; n < weights.size(); ++n) {
    sums.at(regions[n]) += double{weights[n]};
  }
  return sums;
}

void AttentionSource::begin(const std::string& version) {
  if (version_ == version) return;
  version_ = version;
  key_.clear();
  texts_.clear();
  ends_.reset();
}

std::shared_ptr<const KeysOutside> AttentionSource::keys(const TraceReader& trace,
                                                         const BlockSteps& block,
                                                         const StepRef& step, std::size_t layer,
                                                         std::size_t kv_head) {
  // Only a bidirectional model's keys outside the block change from step to step.
  const std::int64_t row = trace.info().meta.bidirectional ? step.row : block.steps.front().row;
  const std::string key = fmt::format("{}/{}/{}", row, layer, kv_head);
  if (key_ != key) {
    key_.clear();
    keys_ = std::make_shared<KeysOutside>(keys_outside(trace, step.row, layer, kv_head));
    key_ = key;
  }
  return keys_;
}

std::string AttentionSource::text(const TraceReader& trace, std::int64_t token) {
  const auto [found, fresh] = texts_.try_emplace(token);
  if (fresh) found->second = readable_token(trace, token);
  return found->second;
}

const EndOfText& AttentionSource::ends(const TraceReader& trace) {
  if (!ends_) ends_.emplace(trace);
  return *ends_;
}

namespace {

/// Of the keys by position. A run does not go beyond the block or into it.
std::vector<std::int32_t> runs_of(const AttentionText& view,
                                  const std::vector<std::int64_t>& tokens, const EndOfText& ends) {
  std::vector<std::int64_t> ordered;
  for (const std::size_t key : view.by_position) ordered.push_back(tokens[key]);
  const auto in_block = [&](std::size_t key) { return key >= view.map.num_external; };
  std::vector<std::int32_t> runs;
  for (std::size_t first = 0; first < ordered.size();) {
    std::size_t end = first + 1;
    while (end < ordered.size() &&
           in_block(view.by_position[end]) == in_block(view.by_position[first])) {
      ++end;
    }
    const auto part = end_of_text_runs(std::span(ordered).subspan(first, end - first), ends);
    runs.insert(runs.end(), part.begin(), part.end());
    first = end;
  }
  return runs;
}

}  // namespace

std::shared_ptr<const AttentionText> read_attention_text(const TraceReader& trace,
                                                         const BlockSteps& block,
                                                         const StepRef& step, std::size_t layer,
                                                         std::size_t head,
                                                         AttentionSource& source) {
  auto view = std::make_shared<AttentionText>();
  const auto outside = source.keys(trace, block, step, layer, kv_slot_of(trace, layer, head));
  view->map = attention_map(trace, step.row, layer, head, *outside);
  view->mean = view->map.mean_weights();
  MapTokens tokens = map_tokens(trace, step.row, view->map);
  view->regions = std::move(tokens.regions);
  view->region_names = region_names(trace.info().meta);
  view->has_pieces = trace.num_pieces() > 0;
  for (const std::int64_t token : tokens.tokens) {
    view->texts.push_back(source.text(trace, token));
  }
  view->by_position.resize(view->map.num_keys());
  std::iota(view->by_position.begin(), view->by_position.end(), std::size_t{0});
  std::ranges::sort(view->by_position, {}, [&](std::size_t n) { return view->map.positions[n]; });
  view->runs = runs_of(*view, tokens.tokens, source.ends(trace));
  return view;
}

Data<AttentionText> request_attention_text(ViewModel& model,
                                           const std::shared_ptr<AttentionSource>& source) {
  if (model.step() == nullptr) return {};
  const Selection& at = model.selection();
  return model.ask<AttentionText>(
      "attention", fmt::format("attention/{}/{}/{}", model.step()->row, at.layer, at.head),
      [block = *model.block(), step = *model.step(), layer = at.layer, head = at.head, source,
       version = model.trace_key(at.trace)](const TraceReader& trace, JobControl& control) {
        const TraceMeta& meta = trace.info().meta;
        control.require(static_cast<std::size_t>(std::max(step.context_length, 0)) *
                            meta.kv_heads.size() * static_cast<std::size_t>(meta.channels()) *
                            sizeof(float) +
                        (meta.map_layers.empty()
                             ? 0
                             : 3 * row_bytes(spec_of(Field::map_weight), meta)));  // and as floats
        control.report(0.0, 1.0);
        source->begin(version);
        return read_attention_text(trace, block, step, layer, head, *source);
      });
}

namespace {

/// Of a key, by its place among the keys by position. Columns have the same width or one less.
std::size_t column_of(std::size_t place, std::size_t keys, std::size_t columns) {
  return place * std::min(columns, keys) / keys;
}

}  // namespace

std::shared_ptr<const MatrixPayload> binned_weights(const AttentionText& view,
                                                    std::size_t columns) {
  const std::size_t keys = view.map.num_keys();
  SimilarityMatrix matrix;
  matrix.rows = view.map.num_queries;
  matrix.columns = std::min(columns, keys);
  matrix.values.assign(matrix.rows * matrix.columns, std::numeric_limits<float>::quiet_NaN());
  for (std::size_t place = 0; place < keys; ++place) {
    const std::size_t column = column_of(place, keys, columns);
    for (std::size_t q = 0; q < matrix.rows; ++q) {
      const float weight = view.map.weights[q * keys + view.by_position[place]];
      float& cell = matrix.values[q * matrix.columns + column];
      if (!(cell >= weight)) cell = weight;  // also the first, because the cell is NaN
    }
  }
  return with_range(std::move(matrix));
}

std::vector<std::int64_t> column_positions(const AttentionText& view, std::size_t columns) {
  std::vector<std::int64_t> positions;
  const std::size_t keys = view.map.num_keys();
  for (std::size_t place = 0; place < keys; ++place) {
    if (column_of(place, keys, columns) < positions.size()) continue;
    positions.push_back(view.map.positions[view.by_position[place]]);
  }
  return positions;
}

CsvTable attention_table(const AttentionText& view, std::optional<std::size_t> query) {
  CsvTable table({"position", "token", "region", "weight [share]"});
  const auto weights = view.weights(query);
  for (const std::size_t n : view.by_position) {
    table.add({std::int64_t{view.map.positions[n]}, view.texts[n],
               view.region_names.at(view.regions[n]), double{weights[n]}});
  }
  return table;
}

CsvTable attention_map_table(const AttentionText& view) {
  CsvTable table({"query", "position", "weight [share]"});
  for (std::size_t q = 0; q < view.map.num_queries; ++q) {
    for (const std::size_t n : view.by_position) {
      table.add({static_cast<std::int64_t>(q), std::int64_t{view.map.positions[n]},
                 double{view.map.weights[q * view.map.num_keys() + n]}});
    }
  }
  return table;
}

}  // namespace blockscope
