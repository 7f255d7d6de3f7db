// A packed linear layer compared with at::linear, and a packed model with the one it was made of.
#include "probe/model/linear.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <string>

#include "probe/model/block_diffusion_model.h"
#include "probe/model/forward_seams.h"
#include "tests/support/tiny_model.h"

namespace blockscope::testing {
namespace {

class PackedLinear : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { at::manual_seed(3); }
};

TEST_P(PackedLinear, EqualsTheProductInFloat64) {
  const c10::InferenceMode guard;
  const double limit = GetParam() == at::kFloat ? 2e-5 : GetParam() == at::kHalf ? 5e-3 : 4e-2;
  for (const auto& [out, in] : {std::pair{512, 384}, {300, 1000}, {24, 16}}) {
    for (const bool with_bias : {false, true}) {
      const at::Tensor weight = (at::randn({out, in}) / 16).to(GetParam());
      const at::Tensor bias = with_bias ? at::randn({out}).to(GetParam()) : at::Tensor();
      Linear linear(weight, bias);
      linear.pack();
      linear.pack();  // once is enough, twice is no harm
      if (GetParam() == at::kFloat && at::globalContext().userEnabledMkldnn()) {
        EXPECT_EQ(linear.packed(), PackedMatrix::fits(weight) || out * in >= 1 << 16)
            << "the product below is at::linear's own";
      }
      for (const int64_t rows : {0, 1, 3, 32, 65}) {
        const at::Tensor x = at::randn({2, rows, in}).to(GetParam());
        const at::Tensor got = linear(x);
        at::Tensor expected = at::linear(x.to(at::kDouble), weight.to(at::kDouble));
        if (with_bias) expected = expected + bias.to(at::kDouble);
        ASSERT_EQ(got.sizes(), expected.sizes());
        EXPECT_EQ(got.scalar_type(), GetParam());
        if (rows == 0) continue;
        EXPECT_LT((got.to(at::kDouble) - expected).abs().max().item<double>(), limit)
            << out << " x " << in << ", " << rows << " rows";
      }
      // Like a transposed attention output: rows that are not one after another in memory.
      const at::Tensor strided = at::randn({2, in, 5}).to(GetParam()).transpose(1, 2);
      EXPECT_LT((linear(strided) - linear(strided.contiguous())).abs().max().item<double>(), limit);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, PackedLinear,
                         ::testing::Values(at::kFloat, at::kHalf, at::kBFloat16),
                         [](const auto& type) { return std::string(at::toString(type.param)); });

/// Every query sees every key.
class FullAttention : public ForwardSeams {
 public:
  at::Tensor attention(const AttentionInput& input) override {
    return at::scaled_dot_product_attention(input.q, input.k, input.v, {}, 0.0, false, {},
                                            /*enable_gqa=*/true);
  }
};

TEST(PackedModel, PredictsWhatTheModelDoes) {
  ModelConfig config = tiny_config();
  config.hidden_size = 320;
  config.intermediate_size = 512;
  config.num_kv_heads = config.num_heads;
  config.head_dim = 80;
  config.vocab_size = 600;
  for (const bool experts : {false, true}) {
    if (experts) {
      config.model_type = "sdar_moe";
      MoeConfig& moe = config.moe.emplace();
      moe.num_experts = 4;
      moe.experts_per_token = 2;
      moe.intermediate_size = 300;  // more weights than the fewest that are packed
      moe.normalise = true;
      moe.sparse = {false, true};
    }
    const BlockDiffusionModel plain = tiny_model(4, config);
    const BlockDiffusionModel packed = tiny_model(4, config).packed();
    EXPECT_TRUE(packed.weights().empty());
    const c10::InferenceMode guard;
    at::manual_seed(4);
    const at::Tensor tokens = at::randint(600, {2, 9}, at::kLong);
    const at::Tensor positions = at::arange(9, at::kLong).expand({2, 9});
    FullAttention seams;
    const at::Tensor expected = plain.logits(plain.forward(tokens, positions, seams));
    const at::Tensor got = packed.logits(packed.forward(tokens, positions, seams));
    const double range = (expected.max() - expected.min()).item<double>();
    EXPECT_LT((got - expected).abs().max().item<double>(), 1e-5 * range) << experts;
  }
}

TEST(PackedModel, CountsATiedHeadTwice) {
  ModelConfig config = tiny_config();
  config.hidden_size = 128;
  config.vocab_size = 1024;  // enough weights for packing
  for (const bool tied : {false, true}) {
    config.tie_word_embeddings = tied;
    int64_t weights = 0;
    for (const ExpectedTensor& tensor : expected_tensors(config)) {
      int64_t numel = 1;
      for (const int64_t size : tensor.shape) numel *= size;
      weights += numel * 4;
    }
    BlockDiffusionModel model = tiny_model(5, config);
    EXPECT_EQ(model.weight_bytes(), weights);
    const bool packs = at::globalContext().userEnabledMkldnn();
    const int64_t head = config.vocab_size * config.hidden_size * 4;
    EXPECT_EQ(std::move(model).packed().weight_bytes(), weights + (tied && packs ? head : 0));
  }
}

/// y = x W^T + b + scale * dropout(x) A^T B^T. With A, B one unit each, the part shows dropped x.
TEST(LowRank, DropsAndScalesTheInputOfItsPartAlone) {
  at::manual_seed(3);
  const int64_t width = 20'000;
  const at::Tensor x = at::full({1, width}, 2.0F);
  Linear linear(at::ones({1, width}), at::full({1}, 5.0F));
  const double plain = 2.0 * static_cast<double>(width) + 5.0;
  LowRank part{at::ones({1, width}), at::ones({1, 1}), 0.5, 0.0};
  linear.add(part);
  EXPECT_NEAR(linear(x).item<double>(), plain + 0.5 * 2.0 * static_cast<double>(width), 1.0);
  part.dropout = 0.25;
  linear.add(part);
  const double dropped = (linear(x).item<double>() - plain) / 0.5;
  // Entries are 0 or 2 / 0.75; their number is binomial.
  const double kept = dropped / (2.0 / 0.75) / static_cast<double>(width);
  EXPECT_NEAR(kept, 0.75, 0.02);
  EXPECT_NE(linear(x).item<double>(), linear(x).item<double>());
}

TEST(LowRank, ChangesOnlyTheProjectionsItNames) {
  const BlockDiffusionModel model = tiny_model(4);
  const std::string name = "model.layers.1.self_attn.v_proj.weight";
  const at::Tensor& weight = model.weights().at(name);
  const at::Tensor a = at::randn({2, weight.size(1)});
  const at::Tensor b = at::randn({weight.size(0), 2});
  const BlockDiffusionModel adapted = model.with_low_rank({{name, {a, b, 0.5, 0.0}}});
  WeightMap summed = model.weights();
  summed[name] = weight + 0.5 * b.matmul(a);
  const BlockDiffusionModel merged(model.config(), summed);
  const at::Tensor tokens = at::arange(12, at::kLong).view({1, 12});
  const auto logits = [&](const BlockDiffusionModel& of) {
    FullAttention seams;
    return of.logits(of.forward(tokens, tokens, seams));
  };
  const at::Tensor expected = logits(merged);
  EXPECT_LT((logits(adapted) - expected).abs().max().item<double>(), 1e-4);
  EXPECT_GT((logits(model) - expected).abs().max().item<double>(), 1e-2);
}

}  // namespace
}  // namespace blockscope::testing
