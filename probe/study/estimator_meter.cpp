#include "probe/study/estimator_meter.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "decode_record/base/error.h"
#include "kernels/ops.h"
#include "probe/model/device.h"
#include "probe/verify/lockstep.h"

namespace blockscope {
namespace {

/// Marks the keys of a set, for one prefix after another.
class KeyMarks {
 public:
  explicit KeyMarks(int64_t keys) : mark_(static_cast<size_t>(keys), 0) {}

  void clear() { ++epoch_; }
  /// Adds a key. False: the set had it already.
  bool insert(int32_t key) {
    uint32_t& mark = mark_[static_cast<size_t>(key)];
    const bool fresh = mark != epoch_;
    mark = epoch_;
    return fresh;
  }
  bool has(int32_t key) const { return mark_[static_cast<size_t>(key)] == epoch_; }
  /// Counts the marked keys among the first `count` keys of a set.
  int64_t count_in(const int32_t* keys, int64_t count) const {
    return std::count_if(keys, keys + count, [this](int32_t key) { return has(key); });
  }

 private:
  std::vector<uint32_t> mark_;
  uint32_t epoch_ = 1;
};

}  // namespace

void EstimateSums::add(Quantity quantity, double value, int64_t terms) {
  sum[quantity] += value;
  count[quantity] += terms;
}

EstimateSums& EstimateSums::operator+=(const EstimateSums& other) {
  for (size_t i = 0; i < kQuantities; ++i) {
    sum[i] += other.sum[i];
    count[i] += other.count[i];
  }
  return *this;
}

double EstimateSums::mean(Quantity quantity) const {
  return count[quantity] == 0 ? std::numeric_limits<double>::quiet_NaN()
                              : sum[quantity] / static_cast<double>(count[quantity]);
}

double EstimateSums::relative_l2() const {
  if (count[kReference] == 0 || sum[kReference] <= 0.0) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  return std::sqrt(sum[kSquared] / sum[kReference]);
}

EstimateSums MethodEstimate::later() const {
  EstimateSums total;
  for (size_t t = 1; t < by_step.size(); ++t) total += by_step[t];
  return total;
}

EstimateResult& EstimateResult::operator+=(const EstimateResult& other) {
  if (other.methods != methods || other.set_sizes != set_sizes) {
    throw Error("study: expected estimates of the same methods and set sizes, got others");
  }
  const auto merge = [](std::vector<EstimateSums>& to, const std::vector<EstimateSums>& from) {
    to.resize(std::max(to.size(), from.size()));
    for (size_t i = 0; i < from.size(); ++i) to[i] += from[i];
  };
  for (size_t m = 0; m < estimates.size(); ++m) {
    for (size_t k = 0; k < set_sizes.size(); ++k) {
      merge(estimates[m][k].by_step, other.estimates[m][k].by_step);
      merge(estimates[m][k].by_head, other.estimates[m][k].by_head);
    }
  }
  for (size_t k = 0; k < set_sizes.size(); ++k) {
    unions[k].insert(unions[k].end(), other.unions[k].begin(), other.unions[k].end());
  }
  return *this;
}

nlohmann::json to_json(const EstimateResult& result) {
  const auto sums = [](const std::vector<EstimateSums>& list) {
    nlohmann::json json = nlohmann::json::array();
    for (const EstimateSums& one : list) json.push_back({one.sum, one.count});
    return json;
  };
  nlohmann::json estimates = nlohmann::json::array();
  for (const auto& method : result.estimates) {
    nlohmann::json sizes = nlohmann::json::array();
    for (const MethodEstimate& estimate : method) {
      sizes.push_back({{"by_step", sums(estimate.by_step)}, {"by_head", sums(estimate.by_head)}});
    }
    estimates.push_back(std::move(sizes));
  }
  return {{"methods", result.methods},
          {"set_sizes", result.set_sizes},
          {"estimates", std::move(estimates)},
          {"unions", result.unions}};
}

EstimateResult estimates_from_json(const nlohmann::json& json) {
  const auto sums = [](const nlohmann::json& list) {
    std::vector<EstimateSums> result;
    for (const nlohmann::json& one : list) {
      EstimateSums& to = result.emplace_back();
      one.at(0).get_to(to.sum);
      one.at(1).get_to(to.count);
    }
    return result;
  };
  EstimateResult result;
  json.at("methods").get_to(result.methods);
  json.at("set_sizes").get_to(result.set_sizes);
  json.at("unions").get_to(result.unions);
  for (const nlohmann::json& method : json.at("estimates")) {
    std::vector<MethodEstimate>& sizes = result.estimates.emplace_back();
    for (const nlohmann::json& one : method) {
      sizes.push_back({sums(one.at("by_step")), sums(one.at("by_head"))});
    }
  }
  return result;
}

/// The exact attention of one layer at one step.
struct EstimatorMeter::Exact {
  TopKSets sets;        // for the largest k, in falling order: smaller sets are its beginnings
  at::Tensor output;    // [1, H, B, D] float32
  at::Tensor lse;       // [1, H, B]
  int64_t length = 0;   // N
  int64_t largest = 0;  // k of `sets`
};

EstimatorMeter::EstimatorMeter(const EstimatorOptions& options, const LoadedModel& model,
                               int64_t block_steps)
    : options_(options), shape_(layer_sizes(model.config)) {
  const auto policy = [](std::string name) {
    PolicyOptions flags;
    flags.policy = std::move(name);
    return flags;
  };
  if (options.all_methods) {
    add_method("oracle", policy("oracle"), model);
    add_method("mage", policy("mage"), model);
    add_method("mage+flashblock", policy("mage+flashblock"), model);
    add_method("sparsed", policy("sparsed"), model);
  }
  for (const int64_t page : options.pages) {
    PolicyOptions quest = policy("quest");
    quest.page = page;
    add_method(fmt::format("quest p={}", page), quest, model);
    methods_.push_back({fmt::format("quest per token p={}", page), page, {}});
  }
  if (options.all_methods) {
    add_method("recent", policy("recent"), model);
    PolicyOptions random = policy("random");
    random.seed = options.policy_seed;
    add_method("random", random, model);
  }
  add_named(model);
  const MethodEstimate empty{
      std::vector<EstimateSums>(static_cast<size_t>(block_steps)),
      std::vector<EstimateSums>(static_cast<size_t>(shape_.num_layers * shape_.num_heads))};
  result_.set_sizes = options.set_sizes;
  result_.unions.resize(options.set_sizes.size());
  for (const Method& method : methods_) {
    result_.methods.push_back(method.label);
    result_.estimates.emplace_back(options.set_sizes.size(), empty);
  }
}

void EstimatorMeter::add_method(std::string label, PolicyOptions policy, const LoadedModel& model) {
  Method method{std::move(label), 0, {}};
  policy.exact_layers = options_.exact_layers;
  for (const int64_t k : options_.set_sizes) {
    policy.k = k;
    method.by_size.push_back(choose_policy(policy, policy_model(model)).policy);
  }
  methods_.push_back(std::move(method));
}

void EstimatorMeter::add_named(const LoadedModel& model) {
  for (const StudyMethod& named : options_.named) {
    const auto same = std::ranges::find(methods_, named.name, &Method::label);
    if (same != methods_.end() &&
        (named.k == 0 || same->by_size.size() == options_.set_sizes.size())) {
      throw UsageError(
          fmt::format("--policies: {}: the study has it already. HINT: leave it out", named.name));
    }
    if (same == methods_.end()) methods_.push_back({named.name, 0, {}});
    std::vector<std::unique_ptr<AttentionPolicy>>& sizes = methods_.back().by_size;
    const size_t count = named.k == 0 ? options_.set_sizes.size() : 1;  // without k: for every k
    for (size_t i = 0; i < count; ++i) {
      sizes.push_back(choose_policy(named.policy, policy_model(model)).policy);
    }
  }
}

void EstimatorMeter::add(size_t method, size_t size, const AttentionView& view, int64_t head,
                         EstimateSums::Quantity quantity, double sum, int64_t terms) {
  MethodEstimate& to = result_.estimates[method][size];
  const SequencePass& pass = view.context.sequences.front();
  to.by_step.at(static_cast<size_t>(pass.step - 1)).add(quantity, sum, terms);
  if (pass.step == 1) return;
  to.by_head.at(static_cast<size_t>(view.input.layer * shape_.num_heads + head))
      .add(quantity, sum, terms);
}

void EstimatorMeter::on_attention(const AttentionView& view) {
  const SequencePass& pass = view.context.sequences.front();
  if (view.context.sequences.size() != 1 || view.exact == nullptr) {
    throw Error("study: expected one sequence under exact attention, got something else");
  }
  if (pass.kind != PassKind::denoise) return;
  if (!options_.all_methods && pass.step > 1) return;
  for (Method& method : methods_) {
    for (auto& policy : method.by_size) {
      if (view.input.layer == 0) policy->begin_pass(view.context);
    }
  }
  Exact exact;
  exact.length = pass.context_length;
  exact.largest = options_.set_sizes.back();
  exact.output = merged_output(*view.exact);
  exact.lse = view.exact->lse_external;
  if (exact.length > 0) {
    exact.sets = topk_sets(view.input.q, view.external.key, view.external.length, exact.lse,
                           exact.largest, view.input.scale, /*with_tokens=*/true);
    exact.sets.index = on_host(exact.sets.index);
    exact.sets.token_index = on_host(exact.sets.token_index);
  }
  for (size_t k = 0; k < options_.set_sizes.size(); ++k) {
    const int64_t size = options_.set_sizes[k];
    if (pass.step > 1 || exact.length <= size) continue;
    KeyMarks marks(exact.length);
    const int64_t tokens = exact.sets.token_index.size(2);
    const auto* index = exact.sets.token_index.const_data_ptr<int32_t>();
    for (int64_t head = 0; head < shape_.num_kv_heads; ++head) {
      marks.clear();
      int64_t distinct = 0;
      for (int64_t i = 0; i < tokens; ++i, index += exact.largest) {
        for (int64_t j = 0; j < size; ++j) distinct += marks.insert(index[j]) ? 1 : 0;
      }
      result_.unions[k].push_back(distinct);
    }
  }
  for (size_t m = 0; m < methods_.size(); ++m) {
    if (methods_[m].token_page > 0) {
      measure_tokens(view, exact, m);
      continue;
    }
    for (size_t k = 0; k < options_.set_sizes.size(); ++k) measure_policy(view, exact, m, k);
  }
  if (view.input.layer + 1 < shape_.num_layers) return;
  for (Method& method : methods_) {
    for (auto& policy : method.by_size) policy->end_pass();
  }
}

void EstimatorMeter::measure_policy(const AttentionView& view, const Exact& exact, size_t method,
                                    size_t size) {
  // Policies choose at every step, even if nothing is measured: MAGE takes its set at the first.
  const AttentionParts parts = methods_[method].by_size[size]->attend(view.input, view.external);
  const int64_t k = options_.set_sizes[size];
  if (exact.length <= k || !parts.selected.defined()) return;
  using Q = EstimateSums;
  const int64_t group = shape_.num_heads / shape_.num_kv_heads;
  const int64_t width = parts.selected.size(2);
  const int64_t tokens = exact.sets.token_index.size(2);
  const at::Tensor chosen = on_host(parts.selected);
  const auto* selected = chosen.const_data_ptr<int32_t>();
  const auto* block_set = exact.sets.index.const_data_ptr<int32_t>();
  const auto* token_set = exact.sets.token_index.const_data_ptr<int32_t>();
  KeyMarks marks(exact.length);
  for (int64_t head = 0; head < shape_.num_kv_heads; ++head, selected += width) {
    marks.clear();
    for (int64_t i = 0; i < width; ++i) {
      if (selected[i] >= 0) marks.insert(selected[i]);
    }
    const double share = 1.0 / static_cast<double>(k);
    add(method, size, view, head * group, Q::kRecall,
        share * static_cast<double>(marks.count_in(block_set + head * exact.largest, k)), 1);
    int64_t hits = 0;
    for (int64_t i = 0; i < tokens; ++i, token_set += exact.largest) {
      hits += marks.count_in(token_set, k);
    }
    add(method, size, view, head * group, Q::kEstAcc, share * static_cast<double>(hits), tokens);
  }
  const at::Tensor covered =
      on_host(at::exp(parts.lse_external - exact.lse).to(at::kDouble).sum(at::IntArrayRef{0, 2}));
  const at::Tensor error = (merged_output(parts) - exact.output).to(at::kDouble);
  const at::Tensor squared = on_host(error.square().sum(at::IntArrayRef{0, 2, 3}));
  const at::Tensor absolute = on_host(error.abs().sum(at::IntArrayRef{0, 2, 3}));
  const at::Tensor reference =
      on_host(exact.output.to(at::kDouble).square().sum(at::IntArrayRef{0, 2, 3}));
  const int64_t elements = error.size(2) * error.size(3);
  for (int64_t head = 0; head < shape_.num_heads; ++head) {
    const auto value = [head](const at::Tensor& of) { return of.const_data_ptr<double>()[head]; };
    add(method, size, view, head, Q::kCovered, value(covered), error.size(2));
    add(method, size, view, head, Q::kSquared, value(squared), elements);
    add(method, size, view, head, Q::kReference, value(reference), elements);
    add(method, size, view, head, Q::kAbsolute, value(absolute), elements);
  }
}

void EstimatorMeter::measure_tokens(const AttentionView& view, const Exact& exact, size_t method) {
  if (view.input.layer < options_.exact_layers) return;
  const int64_t page = methods_[method].token_page;
  const int64_t group = shape_.num_heads / shape_.num_kv_heads;
  if (exact.length <= options_.set_sizes.front()) return;
  const PageBounds bounds = page_bounds(view.external.key, view.external.length, page);
  const at::Tensor scores =
      token_page_scores(view.input.q, bounds, view.external.length, page).squeeze(0);  // [K, T, P]
  const int64_t tokens = scores.size(1);
  for (size_t size = 0; size < options_.set_sizes.size(); ++size) {
    const int64_t k = options_.set_sizes[size];
    if (exact.length <= k) continue;
    const int64_t taken = std::min((k + page - 1) / page, scores.size(2));
    const at::Tensor best = on_host(std::get<1>(scores.topk(taken, -1)).to(at::kInt).contiguous());
    const auto* pages = best.const_data_ptr<int32_t>();
    const auto* token_set = exact.sets.token_index.const_data_ptr<int32_t>();
    KeyMarks marks((exact.length + page - 1) / page);
    for (int64_t head = 0; head < shape_.num_kv_heads; ++head) {
      int64_t hits = 0;
      for (int64_t i = 0; i < tokens; ++i, pages += taken, token_set += exact.largest) {
        marks.clear();
        for (int64_t j = 0; j < taken; ++j) marks.insert(pages[j]);
        hits += std::count_if(token_set, token_set + k, [&](int32_t key) {
          return marks.has(static_cast<int32_t>(key / page));
        });
      }
      add(method, size, view, head * group, EstimateSums::kEstAcc,
          static_cast<double>(hits) / static_cast<double>(k), tokens);
    }
  }
}

void EstimatorMeter::on_remove(int64_t slot) {
  for (Method& method : methods_) {
    for (auto& policy : method.by_size) policy->remove(slot);
  }
}

}  // namespace blockscope
