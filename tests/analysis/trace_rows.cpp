#include "tests/analysis/trace_rows.h"
#include "decode_record/base/nan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace blockscope::testing {
namespace {

/// A row of `dim` values.
std::span<const double> vector_at(const Values& values, std::int64_t row, std::int64_t dim) {
  return std::span(values).subspan(u(row * dim), u(dim));
}

double dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

double cosine(std::span<const double> a, std::span<const double> b) {
  return dot(a, b) / std::sqrt(dot(a, a) * dot(b, b));
}

Values unit(std::span<const double> a) {
  Values result(a.begin(), a.end());
  for (double& value : result) value /= std::sqrt(dot(a, a));
  return result;
}

double distance(std::span<const double> a, std::span<const double> b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

}  // namespace

void RowMaker::append_heads(Values& to, const Values& from, const std::vector<std::int64_t>& heads,
                            std::int64_t all) const {
  const auto size = static_cast<std::int64_t>(from.size()) / all;
  for (const std::int64_t head : heads) {
    const auto part = vector_at(from, head, size);
    to.insert(to.end(), part.begin(), part.end());
  }
}

void RowMaker::append_vectors(Values& to, const Values& from,
                              const std::vector<std::int64_t>& heads, std::size_t layer,
                              std::int64_t all) const {
  const std::int64_t dim = head_dim(layer);
  for (const std::int64_t head : heads) {
    for (std::int64_t i = head * o_.block_length; i < (head + 1) * o_.block_length; ++i) {
      if (head < all) {
        const auto part = vector_at(from, i, dim);
        to.insert(to.end(), part.begin(), part.end());
      }
      to.insert(to.end(), u(meta_.channels() - (head < all ? dim : 0)), kNaN);
    }
  }
}

RowValues RowMaker::next(const ModelStep& step, std::int64_t context_length, std::int64_t changed,
                         const std::vector<bool>& masked) {
  ++number_;
  context_ = context_length;
  changed_ = changed;
  now_ = step;
  if (number_ == 1) first_ = now_;
  std::vector<double> taus(kReuseTaus.begin(), kReuseTaus.end());
  taus.push_back(o_.tau);
  for (const double tau : std::set(taus.begin(), taus.end())) {
    Count& count = counts_[tau];
    if (!count.reuses) count.since_read = 0;
    count.since_read = number_ == 1 ? 0 : count.since_read + changed;
    count.reuses = number_ > 1 && static_cast<double>(count.since_read) < tau;
  }
  for (const float tau : kReuseTaus) {
    if (!reuses(tau)) source_[tau] = now_;
  }
  if (o_.policy != "flashblock" || !reuses(o_.tau)) used_ = now_;
  RowValues row;
  put_predictions(masked, row);
  for (const std::int64_t layer : meta_.layers) {
    put_attention(u(layer), row);
    if (o_.set_size > 0) put_sets(u(layer), row);
    put_summary(u(layer), row);
  }
  for (const float tau : kReuseTaus) {
    if (context_ == 0) break;
    used_.layers.swap(source_[tau].layers);  // put_reuse_error looks at used_
    for (const std::int64_t layer : meta_.layers) put_reuse_error(u(layer), row);
    used_.layers.swap(source_[tau].layers);
  }
  previous_ = now_;
  return row;
}

void RowMaker::put_predictions(const std::vector<bool>& masked, RowValues& row) const {
  Values& kl = row[Field::prediction_kl_step1];
  for (std::int64_t i = 0; i < o_.block_length; ++i) {
    const std::int32_t best = now_.top1[u(i)];
    row[Field::prediction_token].push_back(best);
    row[Field::prediction_confidence].push_back(std::exp(now_.log_p[u(i * kVocabulary + best)]));
    double sum = 0.0;
    for (std::int64_t v = i * kVocabulary; v < (i + 1) * kVocabulary; ++v) {
      sum += std::exp(first_.log_p[u(v)]) * (first_.log_p[u(v)] - now_.log_p[u(v)]);
    }
    kl.push_back(number_ > 1 && masked[u(i)] ? sum : kNaN);
  }
  if (number_ == 1) row.erase(Field::prediction_kl_step1);
}

void RowMaker::put_attention(std::size_t layer, RowValues& row) {
  const LayerStep& now = now_.layers[layer];
  const LayerStep& used = used_.layers[layer];
  const auto heads = [&](Field field, const Values& values) {
    append_heads(row[field], values, meta_.heads, o_.heads);
  };
  const auto vectors = [&](Field field, const Values& values) {
    append_vectors(row[field], values, meta_.heads, layer, o_.heads);
  };
  const auto kv_heads = [&](Field field, const Values& values) {
    append_vectors(row[field], values, meta_.kv_heads, layer,
                   meta_.kv_heads_of(static_cast<std::int64_t>(layer)));
  };
  vectors(Field::attention_external, used.external);
  vectors(Field::attention_internal, now.internal);
  heads(Field::attention_lse_external, used.lse_external);
  heads(Field::attention_lse_internal, now.lse_internal);
  const bool reused = o_.policy == "flashblock" && reuses(o_.tau);
  heads(Field::attention_reused, Values(u(o_.heads), reused ? 1.0 : 0.0));
  vectors(Field::shadow_external, now.external);
  heads(Field::shadow_lse_external, now.lse_external);
  const Values exact = merged(layer, now, now);
  const Values policy = merged(layer, now, used);
  const std::int64_t dim = head_dim(layer);
  Values error;
  for (std::int64_t h = 0; h < o_.heads; ++h) {
    const std::int64_t size = (o_.block_length - o_.invalid) * dim;
    const auto a = std::span(exact).subspan(u(h * o_.block_length * dim), u(size));
    const auto b = std::span(policy).subspan(u(h * o_.block_length * dim), u(size));
    error.push_back(distance(a, b) / std::sqrt(dot(a, a)));
  }
  heads(Field::shadow_output_error, error);
  vectors(Field::query, now.query);
  kv_heads(Field::block_key, now.key);
  kv_heads(Field::block_value, now.value);
  row[Field::hidden].insert(row[Field::hidden].end(), now.hidden.begin(), now.hidden.end());
}

Values RowMaker::merged(std::size_t layer, const LayerStep& internal,
                        const LayerStep& external) const {
  Values out(internal.internal.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t row = i / u(head_dim(layer));
    const double weight =
        1.0 / (1.0 + std::exp(internal.lse_internal[row] - external.lse_external[row]));
    out[i] = weight * external.external[i] + (1.0 - weight) * internal.internal[i];
  }
  return out;
}

void RowMaker::put_sets(std::size_t layer, RowValues& row) const {
  const LayerStep& now = now_.layers[layer];
  const auto index = static_cast<std::int64_t>(layer);
  for (const std::int64_t kv : meta_.kv_heads) {
    if (kv >= meta_.kv_heads_of(index)) {  // padding
      const std::size_t k = u(o_.set_size);
      row[Field::set_topk].insert(row[Field::set_topk].end(), k, -1.0);
      row[Field::set_probability].insert(row[Field::set_probability].end(), k, kNaN);
      row[Field::set_covered].push_back(kNaN);
      row[Field::set_union_size].push_back(-1.0);
      row[Field::set_recall].push_back(kNaN);
      Values& tokens = row[Field::set_topk_token];
      tokens.insert(tokens.end(), u(o_.block_length) * k, -1.0);
      continue;
    }
    const auto set_of = [&](const LayerStep& step) {
      const auto first = step.topk.begin() + static_cast<std::ptrdiff_t>(kv * o_.set_size);
      return std::vector<std::int32_t>(first, first + static_cast<std::ptrdiff_t>(o_.set_size));
    };
    const auto chosen = set_of(now);
    const auto anchor = set_of(first_.layers[layer]);
    double covered = 0.0;
    for (std::int64_t i = 0; i < o_.set_size; ++i) {
      const double probability = now.topk_probability[u(kv * o_.set_size + i)];
      row[Field::set_topk].push_back(chosen[u(i)]);
      row[Field::set_probability].push_back(probability);
      covered += probability;
    }
    row[Field::set_covered].push_back(covered);
    row[Field::set_union_size].push_back(now.union_size[u(kv)]);
    const auto kept = std::ranges::count_if(chosen, [&](std::int32_t position) {
      return std::ranges::find(anchor, position) != anchor.end();
    });
    const bool trivial = number_ == 1 || meta_.external_keys(index, context_) <= o_.set_size;
    row[Field::set_recall].push_back(
        trivial ? kNaN : static_cast<double>(kept) / static_cast<double>(o_.set_size));
    const std::int64_t size = o_.block_length * o_.set_size;
    for (std::int64_t i = kv * size; i < (kv + 1) * size; ++i) {
      row[Field::set_topk_token].push_back(now.topk_token[u(i)]);
    }
  }
}

void RowMaker::put_summary(std::size_t layer, RowValues& row) const {
  const LayerStep& now = now_.layers[layer];
  const std::int64_t positions = o_.block_length - o_.invalid;
  const auto mean = [&](auto value) {
    double sum = 0.0;
    for (std::int64_t i = 0; i < positions; ++i) sum += value(i);
    return sum / static_cast<double>(positions);
  };
  const bool later = number_ > 1;
  for (const std::int64_t head : meta_.heads) {
    const auto at = [&](const Values& values, std::int64_t i) {
      return vector_at(values, head * o_.block_length + i, head_dim(layer));
    };
    const auto similarity = [&](Values LayerStep::*which) {
      if (!later) return double{kNaN};
      const LayerStep& before = previous_.layers[layer];
      return mean([&](auto i) { return cosine(at(now.*which, i), at(before.*which, i)); });
    };
    row[Field::similarity_external].push_back(context_ > 0 ? similarity(&LayerStep::external)
                                                           : kNaN);
    row[Field::similarity_internal].push_back(similarity(&LayerStep::internal));
    const double mass = mean([&](auto i) {
      const std::size_t at_row = u(head * o_.block_length + i);
      return 1.0 / (1.0 + std::exp(now.lse_internal[at_row] - now.lse_external[at_row]));
    });
    row[Field::external_mass].push_back(context_ > 0 ? mass : kNaN);
    const Values& start = first_.layers[layer].query;
    Values average(u(head_dim(layer)), 0.0);
    const double gap = mean([&](auto i) {
      const Values a = unit(at(now.query, i));
      const Values b = unit(at(start, i));
      for (std::size_t d = 0; d < a.size(); ++d) {
        average[d] += (a[d] - b[d]) / static_cast<double>(positions);
      }
      return distance(a, b);
    });
    row[Field::query_gap].push_back(later ? gap : kNaN);
    row[Field::query_block_gap].push_back(later ? std::sqrt(dot(average, average)) : kNaN);
  }
  const double hidden_gap = mean([&](auto i) {
    return distance(unit(vector_at(now.hidden, i, o_.hidden_size)),
                    unit(vector_at(first_.layers[layer].hidden, i, o_.hidden_size)));
  });
  row[Field::hidden_gap].push_back(later ? hidden_gap : kNaN);
}

void RowMaker::put_reuse_error(std::size_t layer, RowValues& row) const {
  const Values reference = merged(layer, now_.layers[layer], now_.layers[layer]);
  const Values reused = merged(layer, now_.layers[layer], used_.layers[layer]);
  const std::int64_t dim = head_dim(layer);
  for (const std::int64_t head : meta_.heads) {
    double squared = 0.0;
    double absolute = 0.0;
    double square = 0.0;
    double product = 0.0;
    const std::int64_t first = head * o_.block_length * dim;
    for (std::int64_t i = first; i < first + (o_.block_length - o_.invalid) * dim; ++i) {
      const double error = reused[u(i)] - reference[u(i)];
      squared += error * error;
      absolute += std::abs(error);
      square += reference[u(i)] * reference[u(i)];
      product += reference[u(i)] * reused[u(i)];
    }
    Values& out = row[Field::reuse_error];
    out.insert(out.end(), {squared, absolute, square, product});
  }
}

}  // namespace blockscope::testing
