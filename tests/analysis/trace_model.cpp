#include "tests/analysis/trace_model.h"
#include "decode_record/base/nan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

namespace blockscope::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The k largest, by falling value, ties to the lower index; -1 where there are fewer.
std::vector<std::int32_t> largest(const Values& values, std::int64_t k) {
  std::vector<std::int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](auto a, auto b) { return values[u(a)] > values[u(b)]; });
  order.resize(u(k), -1);
  return order;
}

double log_sum_exp(const Values& scores) {
  if (scores.empty()) return -kInfinity;
  const double top = *std::ranges::max_element(scores);
  double sum = 0.0;
  for (const double score : scores) sum += std::exp(score - top);
  return top + std::log(sum);
}

}  // namespace

std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16U) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U);
}

double round_to_file(double value, ArrayType type) {
  const auto narrow = static_cast<float>(value);
  if (type == ArrayType::f32) return narrow;
  return std::bit_cast<float>(std::uint32_t{to_bf16(narrow)} << 16U);
}

SequenceModel::SequenceModel(const TraceMakerOptions& options, std::uint64_t seed)
    : o_(options),
      sizes_(sizes_of(options)),
      random_(seed),
      prefix_key_(u(options.layers)),
      prefix_value_(u(options.layers)) {
  step_.layers.resize(u(options.layers));
}

std::int64_t SequenceModel::kv_heads(std::size_t layer) const {
  return sizes_.kv_heads_of(static_cast<std::int64_t>(layer));
}

std::int64_t SequenceModel::head_dim(std::size_t layer) const {
  return sizes_.head_dim_of(static_cast<std::int64_t>(layer));
}

std::int64_t SequenceModel::num_keys(std::size_t layer) const {
  return sizes_.external_keys(static_cast<std::int64_t>(layer), context_);
}

void SequenceModel::begin_block() { fresh_ = true; }

void SequenceModel::evolve(Values& values, std::size_t count) {
  std::normal_distribution<double> normal;
  const double keep = fresh_ ? 0.0 : o_.correlation;
  const double noise = std::sqrt(1.0 - keep * keep);
  values.resize(count, 0.0);
  for (double& value : values) {
    value = round_to_file(keep * value + noise * normal(random_), o_.array_type);
  }
}

const ModelStep& SequenceModel::next_step() {
  for (std::size_t layer = 0; layer < step_.layers.size(); ++layer) {
    const std::size_t per_head = u(o_.block_length * head_dim(layer));
    LayerStep& step = step_.layers[layer];
    evolve(step.query, u(o_.heads) * per_head);
    evolve(step.key, u(kv_heads(layer)) * per_head);
    evolve(step.value, u(kv_heads(layer)) * per_head);
    evolve(step.hidden, u(o_.block_length * o_.hidden_size));
    attend(layer, step);
    if (o_.set_size > 0) choose_sets(layer, step);
  }
  std::normal_distribution<double> normal;
  step_.log_p.resize(u(o_.block_length * kVocabulary), 0.0);
  step_.top1.clear();
  for (std::size_t first = 0; first < step_.log_p.size(); first += u(kVocabulary)) {
    const auto begin = step_.log_p.begin() + static_cast<std::ptrdiff_t>(first);
    const auto end = begin + kVocabulary;
    std::for_each(begin, end, [&](double& value) { value += normal(random_); });
    const double total = log_sum_exp(Values(begin, end));
    std::for_each(begin, end, [&](double& value) { value -= total; });
    step_.top1.push_back(static_cast<std::int32_t>(std::max_element(begin, end) - begin));
  }
  fresh_ = false;
  return step_;
}

double SequenceModel::score(std::size_t layer, const Values& query, std::int64_t head,
                            std::int64_t position, const Values& keys, std::int64_t first) const {
  const std::int64_t query_first = (head * o_.block_length + position) * head_dim(layer);
  double dot = 0.0;
  for (std::int64_t d = 0; d < head_dim(layer); ++d) {
    dot += query[u(query_first + d)] * keys[u(first + d)];
  }
  return dot / std::sqrt(static_cast<double>(o_.head_dim));
}

void SequenceModel::attend(std::size_t layer, LayerStep& step) const {
  const std::int64_t b = o_.block_length;
  const std::int64_t d = head_dim(layer);
  const std::int64_t all_kv = kv_heads(layer);
  const std::int64_t group = o_.heads / all_kv;
  const std::int64_t first_key = context_ - num_keys(layer);
  for (Values* values : {&step.external, &step.internal}) values->assign(u(o_.heads * b * d), kNaN);
  for (Values* values : {&step.lse_external, &step.lse_internal}) {
    values->assign(u(o_.heads * b), kNaN);
  }
  const auto one_side = [&](std::int64_t head, std::int64_t position, std::int64_t count,
                            auto key_first, const Values& keys, const Values& values, Values& out,
                            Values& lse) {
    Values scores;
    for (std::int64_t n = 0; n < count; ++n) {
      scores.push_back(score(layer, step.query, head, position, keys, key_first(n)));
    }
    const std::int64_t row = head * b + position;
    lse[u(row)] = log_sum_exp(scores);
    for (std::int64_t c = 0; c < d; ++c) {
      double sum = 0.0;
      for (std::int64_t n = 0; n < count; ++n) {
        sum += std::exp(scores[u(n)] - lse[u(row)]) * values[u(key_first(n) + c)];
      }
      out[u(row * d + c)] = sum;
    }
  };
  for (std::int64_t head = 0; head < o_.heads; ++head) {
    const std::int64_t kv = head / group;
    for (std::int64_t i = 0; i < b - o_.invalid; ++i) {
      one_side(
          head, i, num_keys(layer),
          [&](std::int64_t n) { return ((first_key + n) * all_kv + kv) * d; }, prefix_key_[layer],
          prefix_value_[layer], step.external, step.lse_external);
      one_side(
          head, i, b - o_.invalid, [&](std::int64_t n) { return (kv * b + n) * d; }, step.key,
          step.value, step.internal, step.lse_internal);
    }
  }
}

Values SequenceModel::probabilities(std::size_t layer, const LayerStep& step,
                                    std::int64_t head) const {
  const std::int64_t kv = head / (o_.heads / kv_heads(layer));
  Values result;
  for (std::int64_t i = 0; i < o_.block_length - o_.invalid; ++i) {
    const std::size_t row = u(head * o_.block_length + i);
    double normaliser = step.lse_external[row];
    if (o_.set_normaliser == SetNormaliser::prefix_and_block) {
      normaliser = log_sum_exp({step.lse_external[row], step.lse_internal[row]});
    }
    for (std::int64_t n = context_ - num_keys(layer); n < context_; ++n) {
      const std::int64_t first = (n * kv_heads(layer) + kv) * head_dim(layer);
      result.push_back(
          std::exp(score(layer, step.query, head, i, prefix_key_[layer], first) - normaliser));
    }
  }
  return result;
}

void SequenceModel::choose_sets(std::size_t layer, LayerStep& step) const {
  const std::int64_t group = o_.heads / kv_heads(layer);
  const std::int64_t keys = num_keys(layer);
  const auto start = static_cast<std::int32_t>(context_ - keys);  // of the layer's window
  const auto absolute = [start](std::vector<std::int32_t> chosen) {
    for (std::int32_t& position : chosen) position += position < 0 ? 0 : start;
    return chosen;
  };
  const std::int64_t queries = o_.block_length - o_.invalid;
  step.topk.clear();
  step.topk_probability.clear();
  step.topk_token.clear();
  step.union_size.clear();
  for (std::int64_t kv = 0; kv < kv_heads(layer); ++kv) {
    Values block_mean(u(keys), 0.0);
    std::vector<Values> token_mean(u(queries), Values(u(keys), 0.0));
    for (std::int64_t head = kv * group; head < (kv + 1) * group; ++head) {
      const Values p = probabilities(layer, step, head);
      for (std::int64_t i = 0; i < queries; ++i) {
        for (std::int64_t n = 0; n < keys; ++n) {
          const double share = p[u(i * keys + n)] / static_cast<double>(group);
          token_mean[u(i)][u(n)] += share;
          block_mean[u(n)] += share / static_cast<double>(queries);
        }
      }
    }
    for (const std::int32_t position : largest(block_mean, o_.set_size)) {
      step.topk.push_back(position < 0 ? position : position + start);
      step.topk_probability.push_back(position < 0 ? 0.0 : block_mean[u(position)]);
    }
    std::set<std::int32_t> together;
    for (std::int64_t i = 0; i < o_.block_length; ++i) {
      const auto chosen = i < queries ? absolute(largest(token_mean[u(i)], o_.set_size))
                                      : std::vector<std::int32_t>(u(o_.set_size), -1);
      step.topk_token.insert(step.topk_token.end(), chosen.begin(), chosen.end());
      together.insert(chosen.begin(), chosen.end());
    }
    together.erase(-1);
    step.union_size.push_back(static_cast<std::int32_t>(together.size()));
  }
}

SequenceModel::Committed SequenceModel::commit_random(std::int64_t count) {
  std::normal_distribution<double> normal;
  std::vector<Values> keys(u(o_.layers));
  std::vector<Values> values(u(o_.layers));
  for (auto* side : {&keys, &values}) {
    for (std::size_t layer = 0; layer < side->size(); ++layer) {
      (*side)[layer].resize(u(kv_heads(layer) * count * head_dim(layer)));
      for (double& x : (*side)[layer]) x = round_to_file(normal(random_), o_.array_type);
    }
  }
  return commit(keys, values, count);
}

SequenceModel::Committed SequenceModel::commit_block() {
  std::vector<Values> keys;
  std::vector<Values> values;
  for (const LayerStep& layer : step_.layers) {
    keys.push_back(layer.key);
    values.push_back(layer.value);
  }
  return commit(keys, values, o_.block_length);
}

SequenceModel::Committed SequenceModel::commit(const std::vector<Values>& keys,
                                               const std::vector<Values>& values,
                                               std::int64_t count) {
  // [K, count, D] -> [count, K, D]
  const auto file_order = [&](std::size_t layer, const Values& from) {
    Values to;
    for (std::int64_t n = 0; n < count; ++n) {
      for (std::int64_t kv = 0; kv < kv_heads(layer); ++kv) {
        const auto first =
            from.begin() + static_cast<std::ptrdiff_t>((kv * count + n) * head_dim(layer));
        to.insert(to.end(), first, first + static_cast<std::ptrdiff_t>(head_dim(layer)));
      }
    }
    return to;
  };
  Committed committed;
  for (std::size_t layer = 0; layer < keys.size(); ++layer) {
    committed.key.push_back(file_order(layer, keys[layer]));
    committed.value.push_back(file_order(layer, values[layer]));
    prefix_key_[layer].insert(prefix_key_[layer].end(), committed.key.back().begin(),
                              committed.key.back().end());
    prefix_value_[layer].insert(prefix_value_[layer].end(), committed.value.back().begin(),
                                committed.value.back().end());
  }
  context_ += count;
  return committed;
}

}  // namespace blockscope::testing
