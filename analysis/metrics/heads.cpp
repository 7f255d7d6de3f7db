#include "analysis/metrics/heads.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <span>

#include "analysis/math/running_mean.h"
#include "analysis/metrics/attention_map.h"
#include "analysis/metrics/block_decisions.h"
#include "analysis/metrics/layer_counts.h"
#include "analysis/pass/exact_values.h"
#include "decode_record/base/error.h"
#include "decode_record/base/nan.h"

namespace blockscope {
namespace {

constexpr const char* kHeadsMetric = "heads";
constexpr std::size_t kReadBlocks = 16;
constexpr std::size_t kReadSteps = 4;

class HeadsMetric final : public StepMetric {
 public:
  Needs begin_trace(const TraceReader& trace, const TraceShape& shape) override {
    Needs needs{
        {Field::spread_entropy, Field::spread_distance, Field::spread_offset, Field::spread_region},
        false,
        false,
        {}};
    for (const Field field : needs.fields) require_field(trace, field, kHeadsMetric);
    trace_ = &trace;
    bins_ = trace.info().meta.distance_bins;
    read_blocks_ = 0;
    if (heads_.empty()) {
      shape_ = shape;
      heads_.resize(shape.layers.size() * shape.heads.size());
      left_out_ = LayerCounts(shape.layers.size());
    }
    return needs;
  }

  /// On the reading thread, which may read more of the trace.
  void add_block(const BlockSteps& block) override {
    if (!trace_->has(Field::prefix_key) || read_blocks_ == kReadBlocks) return;
    ++read_blocks_;
    const BlockDecisions decisions = decisions_of(*trace_, block);
    const auto& prompt = trace_->sequence(block.sequence).prompt;
    const std::set<std::int64_t> copyable(prompt.begin(), prompt.end());
    std::vector<std::size_t> steps;  // that decide a token of the prompt
    for (std::size_t t = 0; t < block.steps.size(); ++t) {
      if (block.steps[t].recorded && !copied_at(decisions, t, copyable).empty()) steps.push_back(t);
    }
    const std::size_t count = std::min(steps.size(), kReadSteps);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t t = steps[i * steps.size() / count];
      add_retrieval(block.steps[t], decisions, copied_at(decisions, t, copyable));
    }
  }

  void add(const StepView& step) override {
    const auto of_head = [&](Field field, std::size_t head) {
      const std::span<const float> all = step.now(field).floats();
      const std::size_t width = all.size() / shape_.heads.size();
      return all.subspan(head * width, width);
    };
    if (step.now(Field::spread_region).empty()) {
      return left_out_.row(step.layer(), "steps without weights");
    }
    const std::int64_t outside = shape_.keys_at(step.layer(), step.now().context_length);
    const auto keys = static_cast<double>(outside + shape_.block_length);
    for (std::size_t head = 0; head < shape_.heads.size(); ++head) {
      const auto entropy = of_head(Field::spread_entropy, head);
      if (std::isnan(entropy[2])) {
        left_out_.values(step.layer(), kUnknownWeights);
        continue;
      }
      Head& found = head_at(step.layer(), head);
      if (keys > 1.0) found.diffuse.add(double{entropy[2]} / std::log(keys));
      found.first.add(double{of_head(Field::spread_region, head)[0]});
      double local = 0.0;
      for (const float share : of_head(Field::spread_offset, head)) local += double{share};
      const auto distance = of_head(Field::spread_distance, head);
      for (std::int64_t bin = 0; bin < bins_ && (std::int64_t{1} << bin) < kLocalDistance; ++bin) {
        const auto place = static_cast<std::size_t>(bins_ - 1 - bin);
        local += double{distance[place]};
        const auto after = static_cast<std::size_t>(bins_ + bin);
        if (after < distance.size()) local += double{distance[after]};
      }
      found.local.add(local);
    }
  }

  MetricResult finish() override {
    MetricResult result;
    result.metric = kHeadsMetric;
    result.title = "Kinds of heads";
    result.formula =
        "retrieval: score >= 0.1; else sink: weight on the first 4 positions >= 0.3; else local: "
        "weight in and near the block >= 0.5; else diffuse";
    result.source = "retrieval: arXiv 2404.15574; sinks: arXiv 2410.10781; local, diffuse: ours";
    result.computed_from = "/spread, /query/query, /kv/key, /prefix/key";
    result.arrays = {by_head("class", "class", "0 diffuse, 1 local, 2 sink, 3 retrieval", {}),
                     by_head("retrieval", "share",
                             "decided tokens that the head finds in the prompt", &Head::retrieval),
                     by_head("first", "share", "weight on the first 4 positions", &Head::first),
                     by_head("local", "share", "weight on the block and up to 31 positions from it",
                             &Head::local),
                     by_head("diffuse", "share", "entropy / log(number of keys)", &Head::diffuse)};
    left_out_.add_to(result.left_out);
    return result;
  }

 private:
  struct Head {
    RunningMean retrieval, first, local, diffuse;

    double kind() const {
      if (retrieval.mean() >= kRetrievalScore) return 3.0;  // false for NaN
      if (first.mean() >= kSinkShare) return 2.0;
      if (local.terms() == 0) return kNaN;
      return local.mean() >= kLocalShare ? 1.0 : 0.0;
    }
  };

  Head& head_at(std::size_t layer, std::size_t head) {
    return heads_[layer * shape_.heads.size() + head];
  }

  /// Positions of the block whose final token is decided at step `t`, if the prompt has the token.
  static std::vector<std::size_t> copied_at(const BlockDecisions& decisions, std::size_t t,
                                            const std::set<std::int64_t>& copyable) {
    std::vector<std::size_t> positions;
    for (std::size_t p = 0; p < decisions.index.size(); ++p) {
      const bool now = decisions.index[p] == static_cast<std::int64_t>(t);
      if (now && copyable.contains(decisions.token[p])) positions.push_back(p);
    }
    return positions;
  }

  void add_retrieval(const StepRef& step, const BlockDecisions& decisions,
                     const std::vector<std::size_t>& positions) {
    const auto shift = static_cast<std::size_t>(trace_->info().meta.logit_shift);
    std::vector<std::int64_t> tokens;
    std::vector<std::int32_t> keys_of_map;
    for (std::size_t layer = 0; layer < shape_.layers.size(); ++layer) {
      KeysOutside keys;
      if (layer > 0 && shape_.ragged()) keys_of_map.clear();  // its window may be another
      std::size_t read = shape_.kv_heads.size();              // none
      for (std::size_t head = 0; head < shape_.heads.size(); ++head) {
        const std::size_t kv_head = kv_slot_of(*trace_, layer, head);
        if (kv_head != read) keys = keys_outside(*trace_, step.row, layer, kv_head);
        read = kv_head;
        const AttentionMap map = attention_map(*trace_, step.row, layer, head, keys);
        if (keys_of_map.empty()) {
          keys_of_map = map.positions;
          tokens = map_tokens(*trace_, step.row, map).tokens;
        }
        if (map.positions != keys_of_map || keys_of_map.empty()) {
          throw CorruptTrace(fmt::format(
              "{}:/kv/key: row {}: expected the same keys in all layers and heads, got others in "
              "layer {}. HINT: the file is damaged",
              trace_->info().path, step.row, shape_.layers[layer]));
        }
        const auto prompt =
            static_cast<std::int32_t>(trace_->sequence(step.sequence).prompt.size());
        for (const std::size_t p : positions) {
          if (p < shift) continue;  // predicted before this block
          const auto weights =
              std::span(map.weights).subspan((p - shift) * map.num_keys(), map.num_keys());
          if (std::isnan(weights.front())) continue;
          const auto best =
              static_cast<std::size_t>(std::ranges::max_element(weights) - weights.begin());
          const bool found = map.positions[best] < prompt && tokens[best] == decisions.token[p];
          head_at(layer, head).retrieval.add(found ? 1.0 : 0.0);
        }
      }
    }
  }

  ResultArray by_head(const char* name, const char* unit, const char* text,
                      RunningMean Head::*score) const {
    ResultArray array{name, unit, text, {shape_.layer_axis(), shape_.head_axis()}, {}, {}};
    for (const Head& head : heads_) {
      const RunningMean& mean = score == nullptr ? head.local : head.*score;
      array.values.push_back(score == nullptr ? head.kind() : mean.mean());
      array.terms.push_back(mean.terms());
    }
    return array;
  }

  const TraceReader* trace_ = nullptr;
  TraceShape shape_;
  std::int64_t bins_ = 0;
  std::size_t read_blocks_ = 0;
  std::vector<Head> heads_;  // [layer, head]
  LayerCounts left_out_;
};

}  // namespace

std::unique_ptr<StepMetric> make_heads_metric(const MetricOptions& /*options*/) {
  return std::make_unique<HeadsMetric>();
}

}  // namespace blockscope
