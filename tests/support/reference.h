// Float64 references, straight from the equations: plain loops over std::vector<double>, sharing
// nothing with the operators. Attention over a key set J (FlashBlock eqs. 2-4, 6):
//   s_j = scale * q . k_j,  lse = log sum_{j in J} exp(s_j),  output = sum_j exp(s_j - lse) v_j.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

namespace blockscope::testing {

using Row = std::vector<double>;

struct ReferenceRow {
  Row output;        // [dim]
  double lse = 0.0;  // -inf without keys
};

inline double score_reference(const Row& q, const Row& key, double scale) {
  double dot = 0.0;
  for (std::size_t d = 0; d < q.size(); ++d) dot += q[d] * key[d];
  return dot * scale;
}

// Attention of one query over keys; values[j] belongs to keys[j].
inline ReferenceRow attention_reference(const Row& q, const std::vector<Row>& keys,
                                        const std::vector<Row>& values, double scale) {
  constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
  std::vector<double> scores;
  double largest = kMinusInfinity;
  for (const Row& key : keys) {
    scores.push_back(score_reference(q, key, scale));
    largest = std::max(largest, scores.back());
  }
  ReferenceRow result{Row(q.size(), 0.0), kMinusInfinity};
  if (largest == kMinusInfinity) return result;
  double sum = 0.0;
  for (const double score : scores) sum += std::exp(score - largest);
  result.lse = largest + std::log(sum);
  for (std::size_t j = 0; j < keys.size(); ++j) {
    const double weight = std::exp(scores[j] - largest) / sum;
    for (std::size_t d = 0; d < q.size(); ++d) result.output[d] += weight * values[j][d];
  }
  return result;
}

// FlashBlock eqs. 8-9 for any number of parts.
inline ReferenceRow merge_reference(const std::vector<ReferenceRow>& parts) {
  constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
  double largest = kMinusInfinity;
  for (const ReferenceRow& part : parts) largest = std::max(largest, part.lse);
  ReferenceRow result{Row(parts.at(0).output.size(), 0.0), kMinusInfinity};
  if (largest == kMinusInfinity) return result;
  double sum = 0.0;
  for (const ReferenceRow& part : parts) sum += std::exp(part.lse - largest);
  result.lse = largest + std::log(sum);
  for (const ReferenceRow& part : parts) {
    const double weight = std::exp(part.lse - largest) / sum;
    for (std::size_t d = 0; d < result.output.size(); ++d) {
      result.output[d] += weight * part.output[d];
    }
  }
  return result;
}

// Mean over queries of the softmax over keys (MAGE eqs. 2-3), one value per key.
inline std::vector<double> mean_probability_reference(const std::vector<Row>& queries,
                                                      const std::vector<Row>& keys, double scale) {
  std::vector<double> mean(keys.size(), 0.0);
  for (const Row& q : queries) {
    const double lse = attention_reference(q, keys, keys, scale).lse;
    for (std::size_t j = 0; j < keys.size(); ++j) {
      mean[j] += std::exp(score_reference(q, keys[j], scale) - lse);
    }
  }
  for (double& value : mean) value /= static_cast<double>(queries.size());
  return mean;
}

// Positions by falling value, ties to the lower position; at most k.
inline std::vector<int64_t> top_k_reference(const std::vector<double>& values, std::size_t k) {
  std::vector<int64_t> order(values.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return values[static_cast<std::size_t>(a)] > values[static_cast<std::size_t>(b)];
  });
  order.resize(std::min(k, order.size()));
  return order;
}

inline double cosine_reference(const Row& a, const Row& b) {
  double dot = 0.0;
  double aa = 0.0;
  double bb = 0.0;
  for (std::size_t d = 0; d < a.size(); ++d) {
    dot += a[d] * b[d];
    aa += a[d] * a[d];
    bb += b[d] * b[d];
  }
  return aa == 0.0 || bb == 0.0 ? 0.0 : dot / std::sqrt(aa * bb);
}

}  // namespace blockscope::testing
