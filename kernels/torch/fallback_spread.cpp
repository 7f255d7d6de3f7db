// WeightSpread in terms of torch operators.
#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "kernels/torch/fallback_operators.h"

namespace blockscope::fallback {
namespace {

using at::Tensor;

constexpr double kHiddenScore = -std::numeric_limits<double>::infinity();

/// Log weights over one set of keys, scores minus their log-sum-exp: [H, T, N]. -inf throughout for
/// a row without a visible key.
struct LogWeights {
  Tensor values, lse;  // [H, T, N], [H, T]

  explicit LogWeights(const Tensor& scores) : lse(at::logsumexp(scores, {-1})) {
    values = scores - lse.masked_fill(lse == kHiddenScore, 0.0).unsqueeze(-1);
  }
  Tensor weights() const { return values.exp(); }
  Tensor entropy() const {  // [H, T]
    return -(weights() * values.masked_fill(values == kHiddenScore, 0.0)).sum(-1);
  }
  Tensor largest() const {  // [H, T]
    return values.size(-1) == 0 ? at::zeros_like(lse) : std::get<0>(weights().max(-1));
  }
};

/// q [H, T, D] and keys [K, N, D] -> scores [H, T, N] float32.
Tensor scores_of(const Tensor& q, const Tensor& keys, double scale) {
  const Tensor rows = q.to(at::kFloat).reshape({keys.size(0), -1, q.size(2)});
  return at::bmm(rows, keys.to(at::kFloat).transpose(1, 2))
      .mul(scale)
      .reshape({q.size(0), q.size(1), keys.size(1)});
}

/// Per position of the N external keys, whether the heads [H] don't read it: [H, 1, N] bool.
Tensor outside_set(const Tensor& index, int64_t length, int64_t heads) {
  const Tensor at = index.to(at::kLong);
  Tensor outside = at::ones({index.size(0), length + 1}, index.options().dtype(at::kBool));
  outside.scatter_(1, at::where(at < 0, length, at), false);  // -1 marks a place after the keys
  return outside.narrow(1, 0, length).repeat_interleave(heads / index.size(0), 0).unsqueeze(1);
}

}  // namespace

void fill_spread(const Tensor& q, const Tensor& k_ext, const Tensor& ext_len, const Tensor& k_in,
                 double scale, const SpreadKeys& keys, WeightSpread& spread) {
  const int64_t heads = q.size(1);
  const int64_t queries = q.size(2);
  const int64_t internal_keys = k_in.size(2);
  const Tensor host_places =
      spread.places.empty() ? at::arange(queries, at::kLong) : at::tensor(spread.places, at::kLong);
  const Tensor places = host_places.to(q.device());
  // Share of each query in the means, [T]; NaN if none counts.
  const Tensor counts = keys.rows.defined()
                            ? keys.rows.to(at::kFloat)
                            : at::ones({queries}, places.options().dtype(at::kFloat));
  const Tensor share = counts / counts.sum();
  const auto mean_of = [&](const Tensor& values) {  // [H, T, ...], over T
    const Tensor kept =
        values.masked_fill(counts.eq(0.0).view({1, queries, 1}), 0.0);  // filler rows may hold NaN
    return (kept * share.view({1, queries, 1})).sum(1);
  };
  std::vector<Tensor> entropy, largest, range, key, offset;
  for (int64_t s = 0; s < q.size(0); ++s) {
    const int64_t length = ext_len[s].item<int64_t>();
    Tensor outside_scores =
        scores_of(q.select(0, s), k_ext.select(0, s).narrow(1, 0, length), scale);
    Tensor inside_scores = scores_of(q.select(0, s), k_in.select(0, s), scale);
    if (keys.index.defined() && !(keys.dense.defined() && keys.dense[s].item<bool>())) {
      outside_scores.masked_fill_(outside_set(keys.index.select(0, s), length, heads),
                                  kHiddenScore);
    }
    if (keys.window > 0) {
      const Tensor distance =
          places.unsqueeze(1) + length - at::arange(length, places.options()).unsqueeze(0);
      outside_scores.masked_fill_(distance >= keys.window, kHiddenScore);
    }
    const Tensor place = at::arange(internal_keys, places.options());
    if (keys.causal) inside_scores.masked_fill_(place > places.unsqueeze(1), kHiddenScore);
    const LogWeights external(outside_scores);
    const LogWeights internal(inside_scores);
    const LogWeights all(at::cat({outside_scores, inside_scores}, -1));
    Tensor entropies = at::stack({external.entropy(), internal.entropy(), all.entropy()}, -1);
    Tensor most = at::stack({external.largest(), internal.largest(), all.largest()}, -1);
    const Tensor mean = mean_of(all.weights());  // [H, N + T_in]
    const Tensor before =
        at::constant_pad_nd(mean.narrow(1, 0, length).to(at::kDouble).cumsum(1), {1, 0}, 0.0);
    const std::vector<int64_t>& ends = spread.ends.at(static_cast<size_t>(s));
    const Tensor at = at::tensor(ends, at::kLong).to(q.device());
    const Tensor reached = before.index_select(1, at);
    Tensor ranges = reached.clone();
    if (ranges.size(1) > 1) {
      ranges.narrow(1, 1, ranges.size(1) - 1).sub_(reached.narrow(1, 0, ranges.size(1) - 1));
    }
    ranges = ranges.to(at::kFloat);
    const Tensor inside = all.weights().narrow(2, length, internal_keys);
    const Tensor diagonal = (place.unsqueeze(0) - places.unsqueeze(1) + internal_keys - 1)
                                .unsqueeze(0)
                                .expand({heads, queries, internal_keys})
                                .reshape({heads, -1});
    Tensor offsets =
        at::zeros({heads, std::max<int64_t>(2 * internal_keys - 1, 0)}, inside.options())
            .scatter_add_(1, diagonal,
                          (inside.masked_fill(counts.eq(0.0).view({1, queries, 1}), 0.0) *
                           share.view({1, queries, 1}))
                              .reshape({heads, -1}));
    Tensor keys_mean = mean.narrow(1, length, internal_keys).clone();
    Tensor entropy_mean = mean_of(entropies);
    Tensor largest_mean = mean_of(most);
    if (keys.reused.defined()) {
      const Tensor reused = keys.reused.expand({q.size(0), heads}).select(0, s).to(q.device());
      const double nan = std::numeric_limits<double>::quiet_NaN();
      for (Tensor* values : {&entropy_mean, &largest_mean}) {
        for (const int64_t side : {0, 2}) values->select(1, side).masked_fill_(reused, nan);
      }
      for (Tensor* values : {&ranges, &keys_mean, &offsets}) {
        values->masked_fill_(reused.unsqueeze(1), nan);
      }
    }
    entropy.push_back(entropy_mean);
    largest.push_back(largest_mean);
    range.push_back(ranges);
    key.push_back(keys_mean);
    offset.push_back(offsets);
  }
  spread.entropy = at::stack(entropy);
  spread.largest = at::stack(largest);
  spread.range = at::stack(range);
  spread.key = at::stack(key);
  spread.offset = at::stack(offset);
}

}  // namespace blockscope::fallback
