// The operators built from torch operators, compared with the CPU's kernels, on the CPU and, as
// ops.h calls them, on the emulated device.
#include "kernels/torch/fallback_operators.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "kernels/ops.h"
#include "kernels/row_ops.h"

namespace blockscope {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

/// Two sequences of 70 and 33 keys, 6 query heads over 2 KV heads; NaN after the lengths.
struct Arguments {
  Tensor q, k_ext, v_ext, k_in, v_in, ext_len, index, cached, cached_lse, lse;

  static Arguments on_cpu(at::ScalarType type, std::vector<int64_t> lengths) {
    at::manual_seed(7);
    const auto n = static_cast<int64_t>(lengths.size());
    Arguments a;
    a.q = at::randn({n, 6, 5, 16}).to(type);
    a.k_ext = at::randn({n, 2, 80, 16}).to(type);
    a.v_ext = at::randn({n, 2, 80, 16}).to(type);
    a.k_in = at::randn({n, 2, 5, 16}).to(type);
    a.v_in = at::randn({n, 2, 5, 16}).to(type);
    a.ext_len = at::tensor(lengths, at::kLong);
    a.index = at::full({n, 2, 9}, -1, at::kInt);
    for (int64_t s = 0; s < n; ++s) {
      const int64_t length = lengths[static_cast<size_t>(s)];
      for (Tensor* keys : {&a.k_ext, &a.v_ext}) {
        keys->select(0, s)
            .narrow(1, length, 80 - length)
            .fill_(std::numeric_limits<double>::quiet_NaN());
      }
      const int64_t count = std::min<int64_t>(length, 7);
      for (int64_t h = 0; h < 2; ++h) {
        a.index[s][h].narrow(0, 1, count).copy_(at::randperm(length).narrow(0, 0, count));
      }
    }
    a.cached = at::randn({n, 6, 5, 16});
    a.cached_lse = at::randn({n, 6, 5});
    a.lse = split_attention(a.q, a.k_ext, a.v_ext, a.ext_len, a.k_in, a.v_in, 0.25).lse_external;
    return a;
  }

  Arguments on(at::Device device) const {
    Arguments a = *this;
    for (Tensor* each :
         {&a.q, &a.k_ext, &a.v_ext, &a.k_in, &a.v_in, &a.index, &a.cached, &a.cached_lse, &a.lse}) {
      *each = each->to(device);
    }
    return a;
  }
};

void expect_close(const Tensors& got, const Tensors& expected, double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_EQ(got[i].sizes(), expected[i].sizes());
    EXPECT_EQ(got[i].scalar_type(), expected[i].scalar_type());
    EXPECT_TRUE(at::allclose(got[i].cpu().to(at::kDouble), expected[i].to(at::kDouble), tolerance,
                             tolerance, true))
        << got[i].cpu() << expected[i];
  }
}

template <class Result>
Tensors parts(const Result& r) {
  return {r.out, r.external, r.lse_external, r.internal, r.lse_internal};
}

class FallbackOperators : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  double tolerance() const {
    return GetParam() == at::kFloat ? 1e-5 : 1e-2;
  }  // outputs are rounded once
  /// Of the CPU's kernels, and of the fallbacks on the device that ops.h's functions find.
  template <class Call>
  void compare(const Call& call) {
    for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{70, 33}, {0, 80}, {1}, {0}}) {
      SCOPED_TRACE(::testing::PrintToString(lengths));
      const Arguments cpu = Arguments::on_cpu(GetParam(), lengths);
      const Tensors got = call(cpu.on(at::kCUDA));
      for (const Tensor& each : got) EXPECT_TRUE(each.is_cuda());
      expect_close(got, call(cpu), tolerance());
    }
  }
};

TEST_P(FallbackOperators, SplitAttention) {
  compare([](const Arguments& a) {
    return parts(split_attention(a.q, a.k_ext, a.v_ext, a.ext_len, a.k_in, a.v_in, 0.25));
  });
}

TEST_P(FallbackOperators, SplitAttentionWithoutInternalKeys) {
  compare([](const Arguments& a) {
    return parts(split_attention(a.q, a.k_ext, a.v_ext, a.ext_len, a.k_in.narrow(2, 0, 0),
                                 a.v_in.narrow(2, 0, 0), 0.25));
  });
}

TEST_P(FallbackOperators, ReuseAttention) {
  for (const std::vector<int64_t>& reused :
       {std::vector<int64_t>{}, {0, 1, 2}, {1, 4}, {0, 1, 2, 3, 4, 5}}) {
    SCOPED_TRACE(::testing::PrintToString(reused));
    compare([&](const Arguments& a) {
      Tensor mask = at::zeros({a.q.size(0), 6}, at::kBool);
      for (const int64_t head : reused) mask.select(0, 0)[head] = true;
      const SourcedAttention r = reuse_attention(a.q, a.k_ext, a.v_ext, a.ext_len, a.k_in, a.v_in,
                                                 a.cached, a.cached_lse, mask, 0.25);
      Tensors result = parts(r);
      result.push_back(r.keys_read);
      return result;
    });
  }
}

TEST_P(FallbackOperators, ReuseAttentionWithRefreshedRows) {
  for (const std::vector<int64_t>& reused : {std::vector<int64_t>{1, 4}, {0, 1, 2, 3, 4, 5}}) {
    for (const std::vector<int64_t>& refreshed : {std::vector<int64_t>{}, {2}, {0, 1, 2, 3}}) {
      SCOPED_TRACE(::testing::PrintToString(reused) + ::testing::PrintToString(refreshed));
      compare([&](const Arguments& a) {
        Tensor mask = at::zeros({6}, at::kBool);
        for (const int64_t head : reused) mask[head] = true;
        Tensor rows = at::zeros({a.q.size(0), a.q.size(2)}, at::kBool);
        for (const int64_t t : refreshed) rows[0][t] = true;
        const SourcedAttention r =
            reuse_attention(a.q, a.k_ext, a.v_ext, a.ext_len, a.k_in, a.v_in, a.cached,
                            a.cached_lse, mask, 0.25, nullptr, rows);
        Tensors result = parts(r);
        result.push_back(r.keys_read);
        return result;
      });
    }
  }
}

TEST_P(FallbackOperators, GatherAttention) {
  compare([](const Arguments& a) {
    const SourcedAttention r =
        gather_attention(a.q, a.k_ext, a.v_ext, a.ext_len, a.index, a.k_in, a.v_in, 0.25);
    Tensors result = parts(r);
    result.push_back(r.keys_read);
    Tensor dense = at::zeros({a.q.size(0)}, at::kBool);
    dense[0] = true;
    const PartialAttention rest =
        unselected_attention(a.q, a.k_ext, a.v_ext, a.ext_len, a.index, 0.25);
    const SourcedAttention with =
        gather_attention(a.q, a.k_ext, a.v_ext, a.ext_len, a.index, a.k_in, a.v_in, 0.25, dense,
                         rest.output, rest.lse);
    for (const Tensor& each : {with.out, with.keys_read, rest.output, rest.lse})
      result.push_back(each);
    return result;
  });
}

TEST_P(FallbackOperators, PrefillAttention) {
  for (const int64_t block : {1, 4, 16}) {
    for (const int64_t start : {0, 7, 28}) {
      compare([&](const Arguments& a) {
        return Tensors{prefill_attention(a.q, a.k_ext, a.v_ext, a.ext_len, block, 0.25, start)};
      });
    }
  }
}

TEST_P(FallbackOperators, Choosing) {
  compare([](const Arguments& a) {
    const TopKSets r = topk_sets(a.q, a.k_ext, a.ext_len, a.lse, 8, 0.25, true);
    const TopK block = block_topk(a.q, a.k_ext, a.ext_len, a.lse, 8, 0.25);
    const TokenTopK token = token_topk(a.q, a.k_ext, a.ext_len, a.lse, 8, 0.25);
    return Tensors{
        r.index,     r.probability,     r.union_size, r.token_index,     r.token_probability,
        block.index, block.probability, token.index,  token.probability, token.union_size};
  });
}

TEST_P(FallbackOperators, Pages) {
  compare([](const Arguments& a) {
    const PageBounds bounds = page_bounds(a.k_ext, a.ext_len, 16);
    return Tensors{bounds.max, bounds.min, page_scores(a.q, bounds, a.ext_len, 16),
                   token_page_scores(a.q, bounds, a.ext_len, 16)};
  });
}

TEST_P(FallbackOperators, MergeAndSimilarity) {
  compare([](const Arguments& a) {
    Tensor none = at::full_like(a.cached_lse, -std::numeric_limits<float>::infinity());
    none.select(0, 0).fill_(0.5);
    const Tensor other = a.q.to(at::kFloat);
    const MergedAttention two = merge_attention({a.cached, other}, {a.cached_lse, none});
    const MergedAttention nothing = merge_attention({other}, {none});
    Tensor zeros = a.cached.clone();
    zeros.select(1, 2).zero_();
    return Tensors{two.out, two.lse, nothing.out, nothing.lse, cross_step_similarity(zeros, other)};
  });
}

TEST_P(FallbackOperators, Rows) {
  compare([](const Arguments& a) {
    const Tensor weight = a.k_in.select(0, 0).select(0, 0).select(0, 0);
    const Tensor cos = a.k_in.narrow(0, 0, 1).narrow(1, 0, 1);
    const Tensor sin = a.v_in.narrow(0, 0, 1).narrow(1, 0, 1);
    Tensors results{silu_multiply(a.k_in, a.v_in)};
    for (const bool first : {false, true}) {
      results.push_back(rms_norm_rows(a.q, weight, 1e-6, first));
      const SumAndNorm both = add_rms_norm_rows(a.k_in, a.v_in, weight, 1e-6, first);
      results.insert(results.end(), {both.sum, both.norm});
      const std::vector<HeadsToRotate> heads{{a.q, weight, 1e-6, first}, {a.k_in, {}, 0.0, false}};
      for (const Tensor& each : norm_rotate_rows(heads, cos, sin)) results.push_back(each);
      for (const Tensor& each :
           norm_rotate_rows(heads, cos.narrow(3, 0, 8).to(at::kFloat).contiguous(),
                            sin.narrow(3, 0, 8).to(at::kFloat).contiguous())) {
        results.push_back(each);
      }
    }
    return results;
  });
}

INSTANTIATE_TEST_SUITE_P(Types, FallbackOperators, ::testing::Values(at::kFloat, at::kBFloat16));

TEST(FallbackOperators, BreakTiesAsTheKernelsDo) {
  const Tensor q = at::ones({1, 2, 3, 8});
  const Tensor keys = at::ones({1, 1, 20, 8});
  const Tensor lse = at::full({1, 2, 3}, 3.0);
  const Tensor length = at::full({1}, 20, at::kLong);
  const TopKSets expected = topk_sets(q, keys, length, lse, 6, 0.1, true);
  const TopKSets got = fallback::topk_sets(q, keys, length, lse, 6, 0.1, true);
  EXPECT_TRUE(at::equal(got.index, expected.index));
  EXPECT_TRUE(at::equal(got.token_index, expected.token_index));
}

}  // namespace
}  // namespace blockscope
