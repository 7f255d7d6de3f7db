// The parts of a DFlash 2 draft compared with loops over their formulas in float64: the best tokens
// of a large vocabulary, the selector's path, and the convolutions.
#include "probe/draft/candidate_selector.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "probe/model/grouped_conv.h"

namespace blockscope::testing {
namespace {

TEST(BestCandidates, AreThoseOfTheWholeRow) {
  const c10::InferenceMode guard;
  at::manual_seed(1);
  for (const auto& [vocabulary, count] : {std::pair<int64_t, int64_t>{7, 7},
                                          {300, 1},
                                          {256 * 40, 16},
                                          {256 * 40 + 1, 16},
                                          {10'000, 5},
                                          {50'023, 16}}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor logits = at::randn({3, vocabulary}).to(type);
      const BestCandidates best = best_candidates(logits, count);
      const at::Tensor expected = std::get<0>(at::topk(logits, count));
      EXPECT_TRUE(at::equal(best.logit, expected)) << vocabulary << " " << count;
      EXPECT_TRUE(at::equal(logits.gather(1, best.token), expected)) << "other tokens";
    }
  }
}

TEST(BestCandidates, MayBeTheLastTokens) {
  const c10::InferenceMode guard;
  const int64_t vocabulary = 256 * 40 + 3;
  const BestCandidates best =
      best_candidates(at::arange(vocabulary).to(at::kFloat).view({1, -1}), 5);
  EXPECT_TRUE(at::equal(best.token[0], at::arange(vocabulary - 1, vocabulary - 6, -1)));
}

TEST(CandidateSelector, WalksByTheFormula) {
  const c10::InferenceMode guard;
  at::manual_seed(2);
  const int64_t vocabulary = 40, rank = 6, hidden_size = 10, slots = 5, count = 4;
  const at::Tensor a = at::randn({vocabulary, rank}), b = at::randn({vocabulary, rank});
  const at::Tensor projection = at::randn({rank, hidden_size});
  const CandidateSelector selector(a, b, projection);
  const at::Tensor hidden = at::randn({2, slots, hidden_size});
  const at::Tensor logits = at::randn({2, slots, vocabulary});
  const auto [logit, token] = at::topk(logits, count);
  const at::Tensor certain = at::tensor({3, 17}, at::kLong);
  const SelectorPath path = selector.walk(hidden, {token, logit}, certain);
  int64_t others = 0;
  for (int64_t s = 0; s < 2; ++s) {
    int64_t before = certain[s].item<int64_t>();
    for (int64_t slot = 0; slot < slots; ++slot) {
      const at::Tensor gate =
          a[before].to(at::kDouble) *
          at::matmul(projection.to(at::kDouble), hidden[s][slot].to(at::kDouble));
      const at::Tensor expected = logit[s][slot].to(at::kDouble) +
                                  at::matmul(b.index({token[s][slot]}).to(at::kDouble), gate);
      EXPECT_TRUE(at::allclose(path.score[s][slot].to(at::kDouble), expected, 1e-5, 1e-5));
      const int64_t chosen = expected.argmax().item<int64_t>();
      ASSERT_EQ(path.chosen[static_cast<size_t>(s * slots + slot)], chosen);
      before = token[s][slot][chosen].item<int64_t>();
      others += chosen > 0 ? 1 : 0;
    }
  }
  EXPECT_GT(others, 0) << "the selector changed nothing, so the test shows nothing";
}

TEST(GroupedConv, MixesARowWithThoseBeforeItInTheBlock) {
  const c10::InferenceMode guard;
  at::manual_seed(3);
  const int64_t hidden_size = 12, group = 4, taps = 3, rows = 5;
  const at::Tensor base = at::randn({2, taps, hidden_size});
  const at::Tensor projection = at::randn({2 * taps * hidden_size / group, hidden_size});
  const GroupedConv conv(base, projection, group);
  const at::Tensor x = at::randn({2, rows, hidden_size});
  const auto part = [](const at::Tensor& y) { return y.tanh(); };
  const auto mixed = [&](const at::Tensor& y, int64_t side) {  // y in float64
    at::Tensor out = at::zeros_like(y);
    const at::Tensor delta = at::linear(x.to(at::kDouble), projection.to(at::kDouble))
                                 .view({2, rows, 2, taps, hidden_size / group});
    for (int64_t s = 0; s < 2; ++s) {
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t t = 0; t <= std::min(i, taps - 1); ++t) {
          for (int64_t c = 0; c < hidden_size; ++c) {
            out[s][i][c] += (base[side][t][c].to(at::kDouble) + delta[s][i][side][t][c / group]) *
                            y[s][i - t][c];
          }
        }
      }
    }
    return out;
  };
  const at::Tensor expected = mixed(mixed(x.to(at::kDouble), 0).tanh(), 1);
  EXPECT_TRUE(at::allclose(conv.around(x, part).to(at::kDouble), expected, 1e-5, 1e-5));
  EXPECT_TRUE(at::equal(GroupedConv().around(x, part), x.tanh()));
}

}  // namespace
}  // namespace blockscope::testing
