#include "analysis/metrics/spread_metrics.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "analysis/math/running_mean.h"
#include "analysis/metrics/layer_counts.h"
#include "analysis/pass/exact_values.h"

namespace blockscope {
namespace {

/// What the three metrics share.
class SpreadMetric : public StepMetric {
 public:
  SpreadMetric(const char* name, std::vector<Field> fields)
      : name_(name), fields_(std::move(fields)) {}

  Needs begin_trace(const TraceReader& trace, const TraceShape& shape) override {
    for (const Field field : fields_) require_field(trace, field, name_);
    if (shape_.layers.empty()) {
      shape_ = shape;
      left_out_ = LayerCounts(shape.layers.size());
      begin(trace);
    }
    check_axes(trace);
    return {fields_, compares_, compares_, {}};
  }

  void add(const StepView& step) override {
    if (std::any_of(fields_.begin(), fields_.end(),
                    [&](Field field) { return step.now(field).empty(); })) {
      return left_out_.row(step.layer(), "steps without weights");
    }
    for (std::size_t head = 0; head < shape_.heads.size(); ++head) add_head(step, head);
  }

 protected:
  virtual void begin(const TraceReader& trace) = 0;
  virtual void check_axes(const TraceReader& /*trace*/) {}
  virtual void add_head(const StepView& step, std::size_t head) = 0;

  std::span<const float> values(const ArrayView& array, std::size_t head) const {
    const std::size_t width = array.floats().size() / shape_.heads.size();
    return array.floats().subspan(head * width, width);
  }
  std::span<const float> now(const StepView& step, Field field, std::size_t head) const {
    return values(step.now(field), head);
  }
  /// Adds a value that is NaN where a head reused its external pair.
  void add_known(StepGrid& grid, const StepView& step, std::size_t head, double value) {
    if (std::isnan(value)) return left_out_.values(step.layer(), kUnknownWeights);
    grid.add(step.layer(), head, step.now().step, value);
  }
  StepGrid heads_grid() const { return {shape_.layers.size(), shape_.heads.size()}; }
  ResultArray by_step(const StepGrid& grid, const char* name, const char* unit,
                      const char* text) const {
    return grid.means(name, unit, text, shape_.layer_axis(), shape_.head_axis());
  }
  /// Means [layer, head, column] of grids with a row of `axis` per head.
  ResultArray by_column(const std::vector<RunningMean>& cells, const char* name, const char* text,
                        ResultAxis axis) const {
    ResultArray array{
        name, "share", text, {shape_.layer_axis(), shape_.head_axis(), std::move(axis)}, {}, {}};
    for (const RunningMean& cell : cells) {
      array.values.push_back(cell.mean());
      array.terms.push_back(cell.terms());
    }
    return array;
  }
  void add_columns(std::vector<RunningMean>& cells, std::size_t layer, std::size_t head,
                   std::span<const float> shares) const {
    RunningMean* cell = cells.data() + (layer * shape_.heads.size() + head) * shares.size();
    for (const float share : shares) (cell++)->add(double{share});
  }
  std::vector<RunningMean> columns(std::size_t width) const {
    return std::vector<RunningMean>(shape_.layers.size() * shape_.heads.size() * width);
  }
  MetricResult result(const char* title, const char* formula, const char* source) const {
    MetricResult made;
    made.metric = name_;
    made.title = title;
    made.formula = formula;
    made.source = source;
    std::vector<std::string_view> paths;
    for (const Field field : fields_) paths.push_back(spec_of(field).path);
    made.computed_from = fmt::format("{}", fmt::join(paths, ", "));
    left_out_.add_to(made.left_out);
    return made;
  }

  const char* name_;
  std::vector<Field> fields_;
  bool compares_ = false;  ///< with the previous and the first step
  TraceShape shape_;
  LayerCounts left_out_;
};

class EntropyMetric final : public SpreadMetric {
 public:
  EntropyMetric() : SpreadMetric("entropy", {Field::spread_entropy, Field::spread_largest}) {}

  MetricResult finish() override {
    MetricResult made = result("Entropy of attention", "H = - sum_j a_j log a_j, mean over queries",
                               "Zhai et al., arXiv 2303.06296");
    made.arrays = {
        by_step(all_, "entropy", "nats", "entropy of the weights of all keys"),
        by_step(external_, "entropy_external", "nats", "entropy of the weights of external keys"),
        by_step(internal_, "entropy_internal", "nats",
                "entropy of the weights of the block's keys"),
        by_step(keys_, "effective_keys", "keys",
                "exp(entropy): number of keys that share the weight"),
        by_step(largest_, "largest", "share", "largest weight of a key")};
    return made;
  }

 private:
  void begin(const TraceReader& /*trace*/) override {
    for (StepGrid* grid : {&all_, &external_, &internal_, &keys_, &largest_}) *grid = heads_grid();
  }
  void add_head(const StepView& step, std::size_t head) override {
    const auto entropy = now(step, Field::spread_entropy, head);
    const std::int64_t outside = shape_.keys_at(step.layer(), step.now().context_length);
    if (outside > 0) add_known(external_, step, head, double{entropy[0]});
    add_known(internal_, step, head, double{entropy[1]});
    add_known(all_, step, head, double{entropy[2]});
    add_known(keys_, step, head, std::exp(double{entropy[2]}));
    add_known(largest_, step, head, double{now(step, Field::spread_largest, head)[2]});
  }

  StepGrid all_, external_, internal_, keys_, largest_;
};

class DistanceMetric final : public SpreadMetric {
 public:
  DistanceMetric() : SpreadMetric("distance", {Field::spread_distance, Field::spread_offset}) {
    compares_ = true;
  }

  MetricResult finish() override {
    MetricResult made =
        result("Attention by distance",
               "sum of the weights whose key is 2^b to 2^(b+1) - 1 positions from the block",
               "as asked for in Streaming-dLLM, issue 3; agreement: 1 - total variation");
    ResultAxis distance{"distance", {}, {}};
    for (std::int64_t bin = bins_; bin-- > 0;) distance.index.push_back(-std::exp2(bin));
    for (std::int64_t bin = 0; bidirectional_ && bin < bins_; ++bin) {
      distance.index.push_back(std::exp2(bin));
    }
    ResultAxis offset{"offset", {}, {}};
    for (std::int64_t i = 1 - block_length_; i < block_length_; ++i) {
      offset.index.push_back(static_cast<double>(i));
    }
    made.arrays = {
        by_column(distance_, "by_distance",
                  "share on external keys, by least distance from the block (-: before it)",
                  std::move(distance)),
        by_column(offset_, "by_offset", "share on keys of the block, by position minus the query's",
                  std::move(offset)),
        by_step(previous_, "agreement", "share",
                "upper bound of the agreement of the weights with the previous step's"),
        by_step(first_, "agreement_first", "share", "the same with step 1")};
    return made;
  }

 private:
  void begin(const TraceReader& trace) override {
    const TraceMeta& meta = trace.info().meta;
    bins_ = meta.distance_bins;
    bidirectional_ = meta.bidirectional;
    block_length_ = meta.block_length;
    distance_ = columns(static_cast<std::size_t>(bins_ * (bidirectional_ ? 2 : 1)));
    offset_ = columns(static_cast<std::size_t>(2 * block_length_ - 1));
    previous_ = heads_grid();
    first_ = heads_grid();
  }
  void check_axes(const TraceReader& trace) override {
    if (trace.info().meta.bidirectional != bidirectional_) {
      throw TraceError(fmt::format(
          "{}: bidirectional: expected what the first trace has, got another. HINT: analyze traces "
          "of other models one by one",
          trace.info().path));
    }
    if (trace.info().meta.distance_bins == bins_) return;
    throw TraceError(fmt::format(
        "{}: distance_bins: expected {}, as in the first trace, got {}. HINT: analyze traces of "
        "other models one by one",
        trace.info().path, bins_, trace.info().meta.distance_bins));
  }
  void add_head(const StepView& step, std::size_t head) override {
    const auto distance = now(step, Field::spread_distance, head);
    const auto offset = now(step, Field::spread_offset, head);
    if (std::isnan(offset.front())) return left_out_.values(step.layer(), kUnknownWeights);
    add_columns(distance_, step.layer(), head, distance);
    add_columns(offset_, step.layer(), head, offset);
    const auto compare = [&](StepGrid& grid, const ArrayView& distances, const ArrayView& offsets) {
      if (distances.empty() || offsets.empty()) return;
      double moved = 0.0;
      const auto add_pairs = [&moved](std::span<const float> a, std::span<const float> b) {
        for (std::size_t i = 0; i < a.size(); ++i) moved += std::abs(double{a[i]} - double{b[i]});
      };
      add_pairs(distance, values(distances, head));
      add_pairs(offset, values(offsets, head));
      if (!std::isnan(moved)) grid.add(step.layer(), head, step.now().step, 1.0 - moved / 2.0);
    };
    if (step.previous() != nullptr) {
      compare(previous_, step.previous(Field::spread_distance),
              step.previous(Field::spread_offset));
    }
    if (step.first() != nullptr && step.now().step > 1) {
      compare(first_, step.first(Field::spread_distance), step.first(Field::spread_offset));
    }
  }

  std::int64_t bins_ = 0;
  std::int64_t block_length_ = 1;
  bool bidirectional_ = false;
  std::vector<RunningMean> distance_, offset_;
  StepGrid previous_, first_;
};

class RegionsMetric final : public SpreadMetric {
 public:
  RegionsMetric() : SpreadMetric("regions", {Field::spread_region}) {}

  Needs begin_trace(const TraceReader& trace, const TraceShape& shape) override {
    Needs needs = SpreadMetric::begin_trace(trace, shape);
    has_blocks_ = trace.has(Field::spread_answer_block);  // older traces lack it
    seen_blocks_ = seen_blocks_ || has_blocks_;
    if (has_blocks_) needs.fields.push_back(Field::spread_answer_block);
    return needs;
  }

  MetricResult finish() override {
    MetricResult made =
        result("Attention by region", "sum of the weights of the keys that stand in a region",
               "regions by position; sinks at the first positions: arXiv 2309.17453");
    const ResultAxis regions{"region", {}, names_};
    made.arrays.push_back(by_column(shares_, "regions", "share of the weight", regions));
    ResultArray steps = by_step_.means("regions_by_step", "share",
                                       "share of the weight, mean over layers and heads",
                                       shape_.layer_axis(), regions);
    made.arrays.push_back(mean_over_others(steps, {"region", "step"}));
    made.arrays.back().name = "regions_by_step";
    if (seen_blocks_) {
      made.computed_from += fmt::format(", {}", spec_of(Field::spread_answer_block).path);
      ResultAxis axis{"answer_block", std::vector<double>(kAnswerBlocks), {}};
      std::iota(axis.index.begin(), axis.index.end(), 1.0);
      made.arrays.push_back(by_column(
          blocks_, "answer_blocks",
          "share of the weight on each earlier answer block: 1 is the one before; the last one "
          "holds all earlier ones",
          axis));
    }
    return made;
  }

 private:
  void begin(const TraceReader& trace) override {
    names_ = trace.info().meta.regions;
    shares_ = columns(names_.size());
    by_step_ = StepGrid(shape_.layers.size(), names_.size());
    blocks_ = columns(static_cast<std::size_t>(kAnswerBlocks));
  }
  void check_axes(const TraceReader& trace) override {
    if (trace.info().meta.regions == names_) return;
    throw TraceError(fmt::format(
        "{}: regions: expected {}, as in the first trace, got {}. HINT: analyze traces with other "
        "regions one by one",
        trace.info().path, fmt::join(names_, ","), fmt::join(trace.info().meta.regions, ",")));
  }
  void add_head(const StepView& step, std::size_t head) override {
    const auto shares = now(step, Field::spread_region, head);
    if (std::isnan(shares.front())) return left_out_.values(step.layer(), kUnknownWeights);
    add_columns(shares_, step.layer(), head, shares);
    if (has_blocks_) {
      add_columns(blocks_, step.layer(), head, now(step, Field::spread_answer_block, head));
    }
    for (std::size_t i = 0; i < shares.size(); ++i) {
      by_step_.add(step.layer(), i, step.now().step, double{shares[i]});
    }
  }

  std::vector<std::string> names_;
  std::vector<RunningMean> shares_, blocks_;
  bool has_blocks_ = false, seen_blocks_ = false;  // this trace, any
  StepGrid by_step_;
};

}  // namespace

std::unique_ptr<StepMetric> make_entropy_metric(const MetricOptions& /*options*/) {
  return std::make_unique<EntropyMetric>();
}

std::unique_ptr<StepMetric> make_distance_metric(const MetricOptions& /*options*/) {
  return std::make_unique<DistanceMetric>();
}

std::unique_ptr<StepMetric> make_regions_metric(const MetricOptions& /*options*/) {
  return std::make_unique<RegionsMetric>();
}

}  // namespace blockscope
