#include "analysis/report/attention_html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "analysis/figures/svg.h"
#include "analysis/metrics/attention_map.h"
#include "analysis/metrics/block_decisions.h"
#include "analysis/report/html.h"
#include "analysis/report/trajectory.h"
#include "decode_record/read/end_of_text.h"

namespace blockscope {
namespace {

constexpr std::size_t kReadSteps = 32;
constexpr std::size_t kShades = 10;
constexpr std::size_t kLargestKeys = 8;  // in the table
constexpr std::size_t kAround = 12;      // keys shown on both sides of one of the largest
constexpr std::size_t kWholeText = 300;  // keys up to which all are shown

/// One query of one step.
struct ShownQuery {
  AttentionMap map;
  StepRef step;
  std::size_t query = 0;
  std::int64_t position = 0, token = -1;  // that the step decided
  double copied = -1.0;                   // see copied_share(); -1: no query
  float weight = -1.0F;                   // the largest outside the block

  std::span<const float> weights() const {
    return std::span(map.weights).subspan(query * map.num_keys(), map.num_keys());
  }
};

/// 0 unless the key with the largest weight holds the decided token; else the larger, the fewer
/// keys hold it. A copied name tells more than a copied full stop.
double copied_share(const std::vector<std::int64_t>& tokens, std::size_t best, std::int64_t token) {
  if (tokens[best] != token) return 0.0;
  return 1.0 / static_cast<double>(std::ranges::count(tokens, token));
}

ShownQuery strongest_query(const TraceReader& trace, const BlockSteps& block,
                           const LookedAt& head) {
  const BlockDecisions decisions = decisions_of(trace, block);
  const auto shift = static_cast<std::size_t>(trace.info().meta.logit_shift);
  std::vector<std::size_t> deciding;
  for (std::size_t t = 0; t < block.steps.size(); ++t) {
    const bool decides = std::ranges::count(decisions.index, static_cast<std::int64_t>(t)) > 0;
    const StepRef& step = block.steps[t];
    const bool known =
        trace.has(Field::prefix_key) || trace.written(Field::map_weight, step.row, 0);
    if (decides && step.recorded && known) deciding.push_back(t);
  }
  ShownQuery best;
  const std::size_t count = std::min(kReadSteps, deciding.size());
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t t = deciding[i * deciding.size() / count];
    const StepRef& step = block.steps[t];
    const AttentionMap map = attention_map(
        trace, step.row, head.layer, head.head,
        keys_outside(trace, step.row, head.layer, kv_slot_of(trace, head.layer, head.head)));
    const std::vector<std::int64_t> tokens = map_tokens(trace, step.row, map).tokens;
    for (std::size_t p = shift; p < decisions.index.size(); ++p) {
      if (decisions.index[p] != static_cast<std::int64_t>(t) || map.num_external == 0) continue;
      const auto weights =
          std::span(map.weights).subspan((p - shift) * map.num_keys(), map.num_external);
      if (std::isnan(weights.front())) continue;  // the row did not compute the query
      const auto largest = std::ranges::max_element(weights);
      const double copied = copied_share(
          tokens, static_cast<std::size_t>(largest - weights.begin()), decisions.token[p]);
      if (std::pair(copied, *largest) <= std::pair(best.copied, best.weight)) continue;
      best = {map,
              step,
              p - shift,
              step.block_start + static_cast<std::int64_t>(p),
              decisions.token[p],
              copied,
              *largest};
    }
  }
  return best;
}

/// Keys by rising position, and which of them the page shows.
struct ShownKeys {
  std::vector<std::size_t> order;
  std::vector<bool> shown;  // by place in `order`
  std::vector<std::size_t> largest;
};

ShownKeys choose_keys(const ShownQuery& query) {
  ShownKeys keys;
  const std::size_t count = query.map.num_keys();
  keys.order.resize(count);
  std::iota(keys.order.begin(), keys.order.end(), std::size_t{0});
  std::ranges::sort(keys.order, {}, [&](std::size_t n) { return query.map.positions[n]; });
  keys.largest = keys.order;
  const std::size_t marked = std::min(kLargestKeys, count);
  std::ranges::partial_sort(
      keys.largest, keys.largest.begin() + static_cast<std::ptrdiff_t>(marked),
      std::ranges::greater{}, [&](std::size_t n) { return query.weights()[n]; });
  keys.largest.resize(marked);
  keys.shown.assign(count, count <= kWholeText);
  for (std::size_t place = 0; place < count; ++place) {
    const std::size_t key = keys.order[place];
    const bool wanted =
        key >= query.map.num_external || std::ranges::find(keys.largest, key) != keys.largest.end();
    if (!wanted) continue;
    const std::size_t first = place - std::min(place, kAround);
    for (std::size_t i = first; i < std::min(count, place + kAround + 1); ++i) keys.shown[i] = true;
  }
  return keys;
}

std::string key_text(const TraceReader& trace, std::int64_t token) {
  return token < 0 ? "\u00b7" : token_text(trace, token);
}

std::string key_chips(const TraceReader& trace, const ShownQuery& query, const ShownKeys& keys,
                      const MapTokens& tokens) {
  const std::span<const float> weights = query.weights();
  const float largest = *std::ranges::max_element(weights);
  std::string html = "<p class=\"looked-at\">";
  std::size_t hidden = 0;
  const auto end_gap = [&] {
    if (hidden > 0)
      html += fmt::format(" <span class=\"note\">\u2026 {} keys \u2026</span> ", hidden);
    hidden = 0;
  };
  const EndOfText ends_text(trace);
  const auto ends = [&](std::size_t place) {
    return place < keys.order.size() && keys.shown[place] &&
           ends_text.contains(tokens.tokens[keys.order[place]]);
  };
  for (std::size_t place = 0, next = 0; place < keys.order.size(); place = next) {
    next = place + 1;
    if (!keys.shown[place]) {
      ++hidden;
      continue;
    }
    end_gap();
    const std::size_t key = keys.order[place];
    double weight = static_cast<double>(weights[key]);
    if (ends(place)) {  // one mark for a run of tokens that end the text
      for (; ends(next); ++next) weight += static_cast<double>(weights[keys.order[next]]);
    }
    const double share = std::sqrt(std::max(0.0, weight) / static_cast<double>(largest));
    const auto shade = std::min(kShades - 1, static_cast<std::size_t>(share * kShades));
    const bool inside = key >= query.map.num_external;
    const std::int32_t query_position =
        query.map.block_start + static_cast<std::int32_t>(query.query);
    const bool itself = inside && query.map.positions[key] == query_position;
    const bool run = next > place + 1;
    html += fmt::format("<bdi class=\"w{}{}{}\" title=\"position{} {}{}, weight {}\">{}{}</bdi>",
                        shade, inside ? " inside" : "", itself ? " query" : "", run ? "s" : "",
                        query.map.positions[key],
                        run ? fmt::format(" to {}", query.map.positions[keys.order[next - 1]]) : "",
                        report_number(weight), escape_markup(key_text(trace, tokens.tokens[key])),
                        run ? fmt::format(" \u00d7 {}", next - place) : "");
  }
  end_gap();
  return html + "</p>\n";
}

NumberTable largest_weights(const TraceReader& trace, const ShownQuery& query,
                            const ShownKeys& keys, const MapTokens& tokens) {
  const std::vector<std::string> names = region_names(trace.info().meta);
  NumberTable table;
  table.header = {"position", "token", "region", "weight"};
  for (const std::size_t key : keys.largest) {
    table.rows.push_back({fmt::format("{}", query.map.positions[key]),
                          key_text(trace, tokens.tokens[key]), names[tokens.regions[key]],
                          report_number(double{query.weights()[key]})});
  }
  return table;
}

}  // namespace

bool has_weights(const TraceReader& trace, std::size_t layer, std::size_t head) {
  const TraceMeta& meta = trace.info().meta;
  if (trace.has(Field::prefix_key)) {
    return std::ranges::binary_search(meta.kv_heads,
                                      meta.kv_head_of(meta.layers[layer], meta.heads[head]));
  }
  return std::ranges::binary_search(meta.map_layers, meta.layers[layer]) &&
         std::ranges::binary_search(meta.map_heads, meta.heads[head]);
}

std::optional<LookedAt> most_telling_head(const TraceReader& trace, const MetricResult& heads) {
  const ResultArray& retrieval = heads.array("retrieval");
  const ResultArray& diffuse = heads.array("diffuse");
  std::optional<LookedAt> best;
  double score = 0.0;
  const auto look = [&](const ResultArray& scores, double sign, double least) {
    const std::size_t num_heads = scores.axes.at(1).index.size();
    for (std::size_t i = 0; i < scores.values.size(); ++i) {
      const double value = sign * scores.values[i];
      if (!(value >= least) || (best && value <= score)) continue;
      if (!has_weights(trace, i / num_heads, i % num_heads)) continue;
      best = LookedAt{i / num_heads, i % num_heads, ""};
      score = value;
    }
  };
  look(retrieval, 1.0, 1e-9);
  if (best) {
    best->why =
        fmt::format("Of all heads, this one finds the most copied tokens in the prompt ({:.0f} %).",
                    100.0 * score);
    return best;
  }
  look(diffuse, -1.0, -1.0);
  if (best)
    best->why = "Of all heads whose weights the trace has, this one spreads them the least.";
  return best;
}

std::string attention_html(const TraceReader& trace, const BlockSteps& block,
                           const LookedAt& head) {
  const ShownQuery query = strongest_query(trace, block, head);
  if (query.weight < 0.0F) return "";
  const TraceMeta& meta = trace.info().meta;
  const MapTokens tokens = map_tokens(trace, query.step.row, query.map);
  const ShownKeys keys = choose_keys(query);
  const std::string title =
      fmt::format("What a query looks at: layer {}, head {}, step {} of block {}",
                  meta.layers[head.layer], meta.heads[head.head], query.step.step, block.block);
  return fmt::format(
      "<figure id=\"looked-at\">\n{}<figcaption><b>{}.</b> {}</figcaption>\n{}</figure>\n",
      key_chips(trace, query, keys, tokens), escape_markup(title),
      html_prose(fmt::format(
          "{} The query decides \"{}\" at position {}. Shade: square root of the "
          "weight; underlined: the block; framed: the query. Exact weights. n = {} "
          "keys.",
          head.why, key_text(trace, query.token), query.position, query.map.num_keys())),
      html_details("The largest weights", html_table(largest_weights(trace, query, keys, tokens))));
}

std::string attention_css() {
  std::string css =
      ".looked-at{line-height:1.9;font-size:13px;margin:.4rem 0}\n"
      ".looked-at bdi{display:inline-block;white-space:pre;padding:0 1px;line-height:1.4}\n"
      ".looked-at .inside{border-bottom:2px solid var(--faint)}\n"
      ".looked-at .query{outline:2px solid var(--text)}\n";
  for (std::size_t i = 1; i < kShades; ++i) {
    css += fmt::format(".w{}{{background:rgba(213,94,0,{:.2f})}}\n", i,
                       0.75 * static_cast<double>(i) / (kShades - 1));
  }
  return css;
}

}  // namespace blockscope
