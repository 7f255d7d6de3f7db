#include "analysis/metrics/cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "analysis/math/running_mean.h"
#include "analysis/metrics/left_out.h"
#include "analysis/pass/exact_values.h"
#include "decode_record/frames/token_changes.h"

namespace blockscope {
namespace {

constexpr const char* kCacheMetric = "cache";

struct StaleField {
  Field field;
  const char* name;
  const char* description;
};
constexpr std::array kStale{
    StaleField{Field::shadow_key_cosine, "key_cosine",
               "kept keys compared with those of a whole pass"},
    StaleField{Field::shadow_value_cosine, "value_cosine",
               "kept values compared with those of a whole pass"},
    StaleField{Field::shadow_attention_cosine, "attention_cosine",
               "attention output of computed rows compared with that of a whole pass"}};

std::int64_t positions_in(const std::vector<PositionRange>& ranges) {
  std::int64_t count = 0;
  for (const PositionRange& range : ranges) count += range.stop - range.start;
  return count;
}

class CacheMetric final : public StepMetric {
 public:
  Needs begin_trace(const TraceReader& trace, const TraceShape& shape) override {
    require_field(trace, Field::query_end, kCacheMetric);
    trace_ = &trace;
    length_.clear();
    if (layers_.size() == 0) {
      layers_.name = "layer";
      for (std::int64_t l = 0; l < shape.num_layers; ++l) {
        layers_.index.push_back(static_cast<double>(l));
      }
      recorded_ = shape.layers;
      const auto layers = static_cast<std::size_t>(shape.num_layers);
      for (StepGrid* grid : {&rows_, &saved_, &keys_, &values_}) *grid = StepGrid(layers, 1);
      for (StepGrid& grid : stale_) grid = StepGrid(layers, 1);
    }
    return {};
  }

  void add(const StepView& /*step*/) override {}

  void add_block(const BlockSteps& block) override {
    if (block.steps.empty()) return;
    const TraceMeta& meta = trace_->info().meta;
    std::vector<std::int64_t> answer =
        trace_->frame_before(block.steps.front().row).generated_tokens;
    for (const StepRef& step : block.steps) {
      add_step(block, step);
      for (const SequenceDelta& delta : trace_->delta(step.row).rows) {
        const StepChanges changes =
            follow_delta(answer, 0, delta, meta.mask_token_id, std::ssize(answer));
        tokens_.add(static_cast<double>(changes.net_tokens));
      }
    }
  }

  MetricResult finish() override {
    MetricResult result;
    result.metric = kCacheMetric;
    result.title = "What the cache saved";
    result.formula =
        "rows: mean C(l, s); saved: 1 - sum C / sum L; staleness: mean cos(cached, whole pass)";
    result.source = "Fast-dLLM, arXiv 2505.22618, Fig. 3; dLLM-Cache; d2Cache";
    result.computed_from = "/cache, /frames";
    result.arrays = {
        means(),
        by_step(rows_, "rows", "positions", "positions computed by a pass"),
        by_step(saved_, "saved", "share", "share of the whole canvas that a pass did not compute"),
        by_step(keys_, "keys", "positions", "key entries written by a pass"),
        by_step(values_, "values", "positions", "value entries written by a pass"),
        rows_by_block()};
    for (std::size_t i = 0; i < kStale.size(); ++i) {
      if (!has_staleness_) break;
      if (i == 0) result.computed_from += ", /shadow/*_cosine";
      result.arrays.push_back(by_step(stale_[i], kStale[i].name, "cosine", kStale[i].description));
    }
    result.left_out = without_zeros(left_out_);
    return result;
  }

 private:
  std::int64_t length_of(std::int64_t sequence) {
    const auto known = length_.find(sequence);
    if (known != length_.end()) return known->second;
    const SequenceInfo info = trace_->sequence(sequence);
    return length_[sequence] = static_cast<std::int64_t>(info.prompt.size()) + info.gen_length;
  }

  void add_step(const BlockSteps& block, const StepRef& step) {
    const std::int64_t length = length_of(block.sequence);
    const std::vector<LayerRanges> work = trace_->cache(step.row);
    std::int64_t all = 0;
    for (std::size_t layer = 0; layer < work.size(); ++layer) {
      const std::int64_t computed = positions_in(work[layer].query);
      all += computed;
      const double share = static_cast<double>(computed) / static_cast<double>(length);
      rows_.add(layer, 0, step.step, static_cast<double>(computed));
      saved_.add(layer, 0, step.step, 1.0 - share, length);
      keys_.add(layer, 0, step.step, static_cast<double>(positions_in(work[layer].key)));
      values_.add(layer, 0, step.step, static_cast<double>(positions_in(work[layer].value)));
    }
    auto& of_block = blocks_[block.block];
    const auto at = static_cast<std::size_t>(step.step - 1);
    if (of_block.size() <= at) of_block.resize(at + 1);
    of_block[at].add(static_cast<double>(all) / static_cast<double>(work.size()));
    add_staleness(step);
  }

  void add_staleness(const StepRef& step) {
    if (!trace_->has(Field::shadow_key_cosine)) return;
    has_staleness_ = true;
    if (!step.recorded) {
      ++left_out_["rows that the recorder's filters left out: no staleness"];
      return;
    }
    for (std::size_t i = 0; i < kStale.size(); ++i) {
      const std::vector<float> values = trace_->read_floats(kStale[i].field, step.row, 1);
      for (std::size_t slot = 0; slot < values.size(); ++slot) {
        if (std::isnan(values[slot])) continue;  // all entries were written, or no row computed
        stale_[i].add(static_cast<std::size_t>(recorded_[slot]), 0, step.step,
                      static_cast<double>(values[slot]));
      }
    }
  }

  RunningMean over_all(const StepGrid& grid) const {
    RunningMean all;
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      all.merge(grid.over_steps(layer, 0));
    }
    return all;
  }

  ResultArray means() const {
    ResultArray array{"means",
                      "positions, share, positions, positions, tokens, cosine, cosine, cosine",
                      "means over layers and denoising passes",
                      {{"quantity",
                        {},
                        {"rows per layer and pass", "share saved", "keys written", "values written",
                         "tokens per forward pass"}}},
                      {},
                      {}};
    std::vector<RunningMean> all{over_all(rows_), over_all(saved_), over_all(keys_),
                                 over_all(values_), tokens_};
    for (std::size_t i = 0; has_staleness_ && i < kStale.size(); ++i) {
      std::string name = kStale[i].name;
      std::ranges::replace(name, '_', ' ');
      array.axes[0].labels.push_back(name);
      all.push_back(over_all(stale_[i]));
    }
    for (const RunningMean& mean : all) {
      array.values.push_back(mean.mean());
      array.terms.push_back(mean.terms());
    }
    return array;
  }

  ResultArray by_step(const StepGrid& grid, const char* name, const char* unit,
                      const char* description) const {
    ResultArray array{name, unit, description, {layers_, rows_.step_axis()}, {}, {}};
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      grid.append_steps(array, layer, 0, 1, rows_.num_steps());
    }
    return array;
  }

  ResultArray rows_by_block() const {
    ResultArray array{"rows_by_block",
                      "positions",
                      "positions computed by a pass, mean over layers",
                      {{"block", {}, {}}, rows_.step_axis()},
                      {},
                      {}};
    for (const auto& [block, steps] : blocks_) {
      array.axes[0].index.push_back(static_cast<double>(block));
      for (std::size_t s = 0; s < array.axes[1].size(); ++s) {
        const RunningMean mean = s < steps.size() ? steps[s] : RunningMean();
        array.values.push_back(mean.mean());
        array.terms.push_back(mean.terms());
      }
    }
    return array;
  }

  const TraceReader* trace_ = nullptr;
  ResultAxis layers_;                                        // layers of the model
  std::vector<std::int64_t> recorded_;                       // model layer of each recorded slot
  StepGrid rows_, saved_, keys_, values_;                    // one column
  std::array<StepGrid, kStale.size()> stale_;                // likewise
  std::map<std::int32_t, std::vector<RunningMean>> blocks_;  // [step - 1]
  RunningMean tokens_;
  bool has_staleness_ = false;
  std::map<std::int64_t, std::int64_t> length_;  // L by sequence of the current trace
  LeftOut left_out_;
};

}  // namespace

std::unique_ptr<StepMetric> make_cache_metric() { return std::make_unique<CacheMetric>(); }

}  // namespace blockscope
