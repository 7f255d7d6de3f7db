// Attention with a window and a causal block, compared with dense attention under its mask in
// float64.
#include "probe/draft/limited_attention.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "kernels/ops.h"
#include "kernels/torch/fallback_operators.h"

namespace blockscope::testing {
namespace {

constexpr int64_t kHeads = 4, kKvHeads = 2, kRows = 5, kWidth = 8, kWindow = 9;
constexpr double kScale = 0.4;

struct Dense {
  at::Tensor out, lse_external, lse_internal, weights;  // weights [H, T, N + T]
};

/// Sequence s alone, with `length` keys before the block.
Dense dense(const AttentionInput& input, const ExternalKeys& external, const RowLimits& limits,
            int64_t s, int64_t length) {
  const auto heads = [&](const at::Tensor& keys) {
    return keys[s].repeat_interleave(kHeads / kKvHeads, 0).to(at::kDouble);
  };
  const at::Tensor key = at::cat({heads(external.key).narrow(1, 0, length), heads(input.k)}, 1);
  const at::Tensor value = at::cat({heads(external.value).narrow(1, 0, length), heads(input.v)}, 1);
  at::Tensor scores = at::matmul(input.q[s].to(at::kDouble), key.transpose(1, 2)) * kScale;
  const at::Tensor query = at::arange(kRows).unsqueeze(1) + length;
  const at::Tensor place = at::arange(length + kRows).unsqueeze(0);
  at::Tensor hidden = at::zeros({kRows, length + kRows}, at::kBool);
  if (limits.window > 0) hidden = hidden | (query - place >= limits.window);
  if (limits.causal) hidden = hidden | (place > query);
  scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  return {at::matmul(scores.softmax(-1), value), scores.narrow(2, 0, length).logsumexp(-1),
          scores.narrow(2, length, kRows).logsumexp(-1), scores.softmax(-1)};
}

class LimitedAttention : public ::testing::TestWithParam<RowLimits> {};

TEST_P(LimitedAttention, EqualsDenseAttentionUnderItsMask) {
  const c10::InferenceMode guard;
  at::manual_seed(5);
  // As the cache holds them: the newest window - 1 keys, or fewer.
  for (const auto& [first, second] : {std::pair<int64_t, int64_t>{8, 8}, {8, 3}, {6, 8}, {2, 1}}) {
    const int64_t longest = std::max(first, second);
    const at::Tensor q = at::randn({2, kHeads, kRows, kWidth});
    const at::Tensor k = at::randn({2, kKvHeads, kRows, kWidth}), v = at::randn_like(k);
    ExternalKeys external{at::randn({2, kKvHeads, longest, kWidth}),
                          at::randn({2, kKvHeads, longest, kWidth}),
                          at::tensor({first, second}, at::kLong), at::tensor({100, 20}, at::kLong)};
    const AttentionInput input{0, q, k, v, kScale};
    const AttentionParts parts = limited_attention(input, external, GetParam());
    const ExternalKeys common = common_keys(external, GetParam(), kRows);
    WeightSpread spread;
    spread.ends = {{first}, {second}};
    fallback::fill_spread(q, external.key, external.length, k, kScale,
                          {.causal = GetParam().causal, .window = GetParam().window}, spread);
    for (int64_t s = 0; s < 2; ++s) {
      const int64_t length = s == 0 ? first : second;
      const Dense expected = dense(input, external, GetParam(), s, length);
      const auto near = [](const at::Tensor& got, const at::Tensor& wanted) {
        return at::allclose(got.to(at::kDouble), wanted, 1e-5, 1e-5);
      };
      EXPECT_TRUE(near(parts.out[s], expected.out));
      EXPECT_TRUE(near(parts.lse_external[s], expected.lse_external));
      EXPECT_TRUE(near(parts.lse_internal[s], expected.lse_internal));
      EXPECT_TRUE(near(spread.key[s], expected.weights.narrow(2, length, kRows).mean(1)));
      EXPECT_TRUE(
          near(spread.range[s].squeeze(-1), expected.weights.narrow(2, 0, length).sum(-1).mean(1)));
      // The keys that no row lacks.
      const int64_t dropped =
          GetParam().window == 0 ? 0 : std::max<int64_t>(0, length + kRows - kWindow);
      EXPECT_EQ(common.length[s].item<int64_t>(), length - std::min(dropped, length));
      EXPECT_EQ((common.first[s] - external.first[s]).item<int64_t>(), std::min(dropped, length));
      EXPECT_TRUE(at::equal(
          common.key[s].narrow(1, 0, common.length[s].item<int64_t>()),
          external.key[s].narrow(1, std::min(dropped, length), common.length[s].item<int64_t>())));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, LimitedAttention,
                         ::testing::Values(RowLimits{kWindow, false}, RowLimits{kWindow, true},
                                           RowLimits{0, true}),
                         [](const auto& info) {  // without it, padding bytes would be in the name
                           return std::string(info.param.window > 0 ? "Window" : "") +
                                  (info.param.causal ? "Causal" : "");
                         });

}  // namespace
}  // namespace blockscope::testing
