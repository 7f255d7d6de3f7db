#include "analysis/metrics/sinks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <span>
#include <utility>

#include "analysis/math/running_mean.h"
#include "analysis/metrics/attention_map.h"
#include "analysis/metrics/layer_counts.h"
#include "analysis/pass/exact_values.h"
#include "decode_record/base/nan.h"

namespace blockscope {
namespace {

constexpr const char* kSinksMetric = "sinks";
constexpr const char* kWithoutSets = "steps without sets";
constexpr std::size_t kTenths = 10;

class SinksMetric final : public StepMetric {
 public:
  explicit SinksMetric(double factor) : factor_(factor) {}

  Needs begin_trace(const TraceReader& trace, const TraceShape& shape) override {
    require_field(trace, Field::set_probability, kSinksMetric);
    const TraceMeta& meta = trace.info().meta;
    if (layers_.empty()) {
      shape_ = shape;
      layers_.resize(shape.layers.size());
      for (Layer& layer : layers_) layer.heads.resize(shape.kv_heads.size());
      for (StepGrid* grid : {&sinks_, &mass_, &kept_, &first_mass_}) {
        *grid = StepGrid(shape.layers.size(), shape.kv_heads.size());
      }
      shared_ = StepGrid(shape.layers.size(), 1);
      left_out_ = LayerCounts(shape.layers.size());
    }
    with_block_ = meta.set_normaliser == SetNormaliser::prefix_and_block;
    ++trace_;
    has_norms_ = meta.has_set_norms;
    any_norms_ = any_norms_ || has_norms_;
    if (!has_norms_) return {{Field::set_topk, Field::set_probability}, false, false, {}};
    return {{Field::set_topk, Field::set_probability, Field::set_key_norm, Field::set_value_norm},
            false,
            false,
            {}};
  }

  void add(const StepView& step) override {
    const std::size_t slot = step.layer();
    Layer& layer = layers_[slot];
    const StepRef& now = step.now();
    if (layer.trace != trace_ || layer.sequence != now.sequence || layer.block != now.block) {
      end_block(layer);
      layer.trace = trace_;
      layer.sequence = now.sequence;
      layer.block = now.block;
    } else if (step.previous() == nullptr) {
      end_runs(layer);  // a gap
    }
    const std::int64_t outside = shape_.keys_at(slot, now.context_length);
    if (outside == 0) {
      end_runs(layer);
      return left_out_.row(slot, kNoPrefix);
    }
    const ArrayView sets = step.now(Field::set_topk);
    const ArrayView probabilities = step.now(Field::set_probability);
    if (sets.empty() || probabilities.empty()) {
      end_runs(layer);
      return left_out_.row(slot, kWithoutSets);
    }
    const auto keys = static_cast<double>(outside + (with_block_ ? step.num_valid() : 0));
    const std::size_t kv_heads = shape_.kv_slots_at(slot);
    const auto k = static_cast<std::size_t>(shape_.set_size);
    std::map<std::int32_t, std::int64_t> heads_of;  // by position of a sink
    for (std::size_t head = 0; head < kv_heads; ++head) {
      add_head(step, head, sets.ints().subspan(head * k, k),
               probabilities.floats().subspan(head * k, k), factor_ / keys);
      if (has_norms_) add_norms(step, head, layer.heads[head]);
      for (const auto& [position, run] : layer.heads[head].runs) ++heads_of[position];
    }
    for (const auto& [position, count] : heads_of) {
      shared_.add(slot, 0, now.step, static_cast<double>(count) / static_cast<double>(kv_heads));
    }
  }

  MetricResult finish() override {
    for (Layer& layer : layers_) end_block(layer);
    const ResultAxis layers = shape_.layer_axis();
    const ResultAxis heads = shape_.kv_head_axis();
    MetricResult result;
    result.metric = kSinksMetric;
    result.title = "Attention sinks";
    result.formula = fmt::format("sinks S(t) = keys with mean probability > {} / n", factor_);
    result.source = "Rulli et al., Attention Sinks in Diffusion Language Models: epsilon = 3";
    result.computed_from = "/sets/topk, /sets/probability";
    result.arrays.push_back(sinks_.means("sinks", "keys", "sinks of a KV head", layers, heads));
    result.arrays.push_back(
        mass_.means("sink_mass", "share", "probability that the sinks receive", layers, heads));
    result.arrays.push_back(kept_.means(
        "kept", "share", "share of the previous step's sinks that are still sinks", layers, heads));
    result.arrays.push_back(first_mass_.means(
        "first_mass", "share", "probability on the first 4 positions, if they are in the set",
        layers, heads));
    result.arrays.push_back(
        by_head("lifetime", "steps", "steps in a row that a key is a sink", &Head::lifetime));
    result.arrays.push_back(
        by_head("moved", "share",
                "standard deviation of the strongest sink's place over a block, of the prefix",
                &Head::moved));
    if (any_norms_) {
      const char* const text = "of the sinks, as a multiple of that of the set's other keys";
      result.arrays.push_back(
          by_head("key_norm", "ratio", fmt::format("key norm {}", text).c_str(), &Head::key_norm));
      result.arrays.push_back(by_head(
          "value_norm", "ratio", fmt::format("value norm {}", text).c_str(), &Head::value_norm));
      result.computed_from += ", /sets/key_norm, /sets/value_norm";
    }
    ResultArray shared = shared_.means("shared", "share", "share of the KV heads that have a sink",
                                       layers, {"any", {0.0}, {}});
    shared.axes.erase(shared.axes.begin() + 1);
    result.arrays.push_back(std::move(shared));
    result.arrays.push_back(places());
    left_out_.add_to(result.left_out);
    return result;
  }

 private:
  struct Head {
    std::map<std::int32_t, std::int64_t> runs;  // sinks of the last step: position, steps in a row
    std::vector<double> strongest;              // places in the prefix, over the block's steps
    RunningMean lifetime, moved, key_norm, value_norm;
  };
  struct Layer {
    std::int64_t trace = -1, sequence = -1;
    std::int32_t block = -1;
    std::vector<Head> heads;
    std::array<std::int64_t, kTenths> places{};
  };

  void add_head(const StepView& step, std::size_t column, std::span<const std::int32_t> set,
                std::span<const float> probability, double threshold) {
    const std::size_t slot = step.layer();
    const StepRef& now = step.now();
    Layer& layer = layers_[slot];
    Head& head = layer.heads[column];
    std::map<std::int32_t, std::int64_t> runs;
    double mass = 0.0;
    double first = 0.0;
    std::size_t length = 0;
    for (; length < set.size() && set[length] >= 0; ++length) {  // padding is -1
      const double p = double{probability[length]};
      if (std::isnan(p)) {
        end_runs(head);
        return left_out_.values(slot, kNonFinite);
      }
      if (set[length] < kFirstPositions) first += p;
      if (!(p > threshold)) continue;
      mass += p;
      const auto before = head.runs.find(set[length]);
      runs[set[length]] = before == head.runs.end() ? 1 : before->second + 1;
    }
    if (length == 0) {
      end_runs(head);
      return left_out_.values(slot, kWithoutSets);
    }
    const std::int64_t keys = shape_.keys_at(slot, now.context_length);
    const std::int64_t start = now.context_length - keys;  // of the layer's window
    for (const auto& [position, steps] : runs) {
      const auto place = static_cast<std::size_t>(std::max<std::int64_t>(position - start, 0));
      const std::size_t tenth = place * kTenths / static_cast<std::size_t>(keys);
      ++layer.places.at(std::min(tenth, kTenths - 1));
    }
    const bool all_sinks = runs.size() == length && std::cmp_less(length, keys);
    if (all_sinks) left_out_.values(slot, "sets whose last key is still a sink");
    sinks_.add(slot, column, now.step, static_cast<double>(runs.size()));
    mass_.add(slot, column, now.step, mass);
    first_mass_.add(slot, column, now.step, first);
    if (!runs.empty()) {
      head.strongest.push_back(double(set[0] - start) / double(keys));
    }
    end_steps(head, runs, step.previous() != nullptr, slot, column, now.step);
    head.runs = std::move(runs);
  }

  /// After add_head(): its runs are the sinks of this step.
  void add_norms(const StepView& step, std::size_t column, Head& head) const {
    const auto k = static_cast<std::size_t>(shape_.set_size);
    const auto set = step.now(Field::set_topk).ints().subspan(column * k, k);
    const auto ratio = [&](Field field) {
      const auto norms = step.now(field).floats().subspan(column * k, k);
      double sinks = 0.0;
      double others = 0.0;
      std::size_t length = 0;
      for (; length < set.size() && set[length] >= 0; ++length) {
        (head.runs.contains(set[length]) ? sinks : others) += double{norms[length]};
      }
      const auto count = static_cast<double>(head.runs.size());
      const double rest = static_cast<double>(length) - count;
      return count > 0.0 && rest > 0.0 ? (sinks / count) / (others / rest) : kNaN;
    };
    for (const auto& [field, mean] : {std::pair{Field::set_key_norm, &head.key_norm},
                                      std::pair{Field::set_value_norm, &head.value_norm}}) {
      const double value = ratio(field);
      if (!std::isnan(value)) mean->add(value);
    }
  }

  /// Counts the sinks of the last step that are none any more, and the share of those that stay.
  void end_steps(Head& head, const std::map<std::int32_t, std::int64_t>& now, bool compares,
                 std::size_t slot, std::size_t column, std::int32_t step) {
    std::int64_t stayed = 0;
    for (const auto& [position, steps] : head.runs) {
      if (now.contains(position)) {
        ++stayed;
      } else {
        head.lifetime.add(static_cast<double>(steps));
      }
    }
    if (!compares || head.runs.empty()) return;
    kept_.add(slot, column, step,
              static_cast<double>(stayed) / static_cast<double>(head.runs.size()));
  }

  static void end_runs(Head& head) {
    for (const auto& [position, steps] : head.runs) head.lifetime.add(static_cast<double>(steps));
    head.runs.clear();
  }

  static void end_runs(Layer& layer) {
    for (Head& head : layer.heads) end_runs(head);
  }

  static void end_block(Layer& layer) {
    end_runs(layer);
    for (Head& head : layer.heads) {
      if (head.strongest.size() > 1) {
        const auto count = static_cast<double>(head.strongest.size());
        double mean = 0.0;
        for (const double place : head.strongest) mean += place / count;
        double squares = 0.0;
        for (const double place : head.strongest) squares += (place - mean) * (place - mean);
        head.moved.add(std::sqrt(squares / count));
      }
      head.strongest.clear();
    }
  }

  ResultArray by_head(const char* name, const char* unit, const char* description,
                      RunningMean Head::*mean) const {
    ResultArray array{name, unit, description, {shape_.layer_axis(), shape_.kv_head_axis()},
                      {},   {}};
    for (const Layer& layer : layers_) {
      for (const Head& head : layer.heads) {
        array.values.push_back((head.*mean).mean());
        array.terms.push_back((head.*mean).terms());
      }
    }
    return array;
  }

  ResultArray places() const {
    ResultAxis tenths{"tenth", {}, {}};
    for (std::size_t i = 0; i < kTenths; ++i) tenths.index.push_back(static_cast<double>(i));
    ResultArray array{"places",
                      "share",
                      "share of the sinks by tenth of the prefix",
                      {shape_.layer_axis(), std::move(tenths)},
                      {},
                      {}};
    for (const Layer& layer : layers_) {
      std::int64_t all = 0;
      for (const std::int64_t count : layer.places) all += count;
      for (const std::int64_t count : layer.places) {
        array.values.push_back(all == 0 ? kNaN
                                        : static_cast<double>(count) / static_cast<double>(all));
        array.terms.push_back(all);
      }
    }
    return array;
  }

  double factor_;
  TraceShape shape_;
  std::int64_t trace_ = -1;
  bool with_block_ = false;
  bool has_norms_ = false, any_norms_ = false;  // of this trace, of any
  std::vector<Layer> layers_;
  StepGrid sinks_, mass_, kept_, first_mass_, shared_;
  LayerCounts left_out_;
};

}  // namespace

std::unique_ptr<StepMetric> make_sinks_metric(const MetricOptions& options) {
  return std::make_unique<SinksMetric>(options.sink_factor);
}

}  // namespace blockscope
