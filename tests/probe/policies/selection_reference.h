// The sets that the sparse policies must read, recomputed from q and the keys in float64 loops.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "probe/policies/selection_policy.h"
#include "tests/probe/policies/policy_pass.h"
#include "tests/support/reference.h"

namespace blockscope::testing {

using Set = std::vector<int64_t>;  // by falling score

inline SelectionOptions with_k(int64_t k) {
  SelectionOptions options;
  options.num_layers = 2;
  options.k = k;
  return options;
}

inline Set members(const at::Tensor& row) {
  Set set;
  for (int64_t i = 0; i < row.size(0); ++i) {
    if (row[i].item<int64_t>() >= 0) set.push_back(row[i].item<int64_t>());
  }
  return set;
}

inline Set set_of(const AttentionParts& parts, int64_t s, int64_t kv_head) {
  return parts.selected.defined() ? members(parts.selected[s][kv_head]) : Set{};
}

inline Row row_of(const at::Tensor& vector) {
  Row row;
  for (int64_t d = 0; d < vector.size(0); ++d) row.push_back(vector[d].item<double>());
  return row;
}

inline std::vector<Row> prefix_keys(const PolicyPass& pass, int64_t s, int64_t kv_head) {
  std::vector<Row> keys;
  for (int64_t n = 0; n < pass.length[s].item<int64_t>(); ++n) {
    keys.push_back(row_of(pass.key[s][kv_head][n]));
  }
  return keys;
}

/// MAGE eq. 3.
inline Set reference_set(const PolicyPass& pass, int64_t s, int64_t kv_head, size_t k) {
  std::vector<Row> queries;
  for (int64_t g = 0; g < 2; ++g) {
    for (int64_t t = 0; t < PolicyPass::kBlock; ++t) {
      queries.push_back(row_of(pass.q[s][kv_head * 2 + g][t]));
    }
  }
  return top_k_reference(mean_probability_reference(queries, prefix_keys(pass, s, kv_head), 0.4),
                         k);
}

/// Quest with MAGE's mean over the block: pages by falling bound, keys rising in each.
inline Set reference_pages(const PolicyPass& pass, int64_t s, int64_t kv_head, size_t pages,
                           size_t page) {
  const std::vector<Row> keys = prefix_keys(pass, s, kv_head);
  std::vector<double> bounds;
  for (size_t begin = 0; begin < keys.size(); begin += page) {
    const size_t end = std::min(begin + page, keys.size());
    double mean = 0.0;
    for (int64_t g = 0; g < 2; ++g) {
      for (int64_t t = 0; t < PolicyPass::kBlock; ++t) {
        const Row q = row_of(pass.q[s][kv_head * 2 + g][t]);
        for (size_t d = 0; d < q.size(); ++d) {
          double most = keys[begin][d];
          double least = most;
          for (size_t n = begin; n < end; ++n) {
            most = std::max(most, keys[n][d]);
            least = std::min(least, keys[n][d]);
          }
          mean += std::max(q[d] * most, q[d] * least);
        }
      }
    }
    bounds.push_back(mean);
  }
  Set set;
  for (const int64_t chosen : top_k_reference(bounds, pages)) {
    const size_t begin = static_cast<size_t>(chosen) * page;
    for (size_t n = begin; n < std::min(begin + page, keys.size()); ++n) {
      set.push_back(static_cast<int64_t>(n));
    }
  }
  return set;
}

inline bool same_parts(const AttentionParts& a, const AttentionParts& b) {
  return at::equal(a.out, b.out) && at::equal(a.external, b.external) &&
         at::equal(a.lse_external, b.lse_external) && at::equal(a.internal, b.internal);
}

}  // namespace blockscope::testing
