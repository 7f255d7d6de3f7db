// Steps as graphs (pass_graphs.h) on the emulated cuda:0 with emulated kernels: the tokens are
// those of the CPU and of steps that are launched one by one, whatever lies between the steps that
// are repeated, and a step costs what is said.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "decode_record/base/error.h"
#include "probe/policies/quest_policy.h"
#include "probe/policies/sparsed_policy.h"
#include "tests/probe/decode/graph_runs.h"

namespace blockscope {
namespace {

using namespace testing;

TEST(DeviceGraphs, AreTheStepsBehindTheFirstTwoOfABlock) {
  // 17 prompt tokens and 32 positions are 5 blocks, the first of them with 7 masks.
  const std::vector<DecodeRequest> request{tiny_request(0, 17, 32)};
  DecodeOptions options = options_of_eight();
  EXPECT_EQ(graphs_of_equal_run(tiny_config(), make_exact_policy, options, request), 6 + 4 * 7);
  // A block's first step commits the block before, and is no step like the others.
  options.cache.cache = "blockd";
  EXPECT_EQ(graphs_of_equal_run(tiny_config(), make_exact_policy, options, request), 6 + 4 * 6);
}

TEST(DeviceGraphs, DecodeTwoSequencesTogether) {
  EXPECT_GT(
      graphs_of_equal_run(tiny_config(), make_exact_policy, options_of_eight(), two_requests()),
      10);
}

TEST(DeviceGraphs, RepeatWhatFlashblockReuses) {
  for (const bool calibrated : {false, true}) {
    SCOPED_TRACE(calibrated);
    const auto make = [&] { return make_flashblock_policy(flashblock(9, calibrated)); };
    EXPECT_GT(graphs_of_equal_run(tiny_config(), make, options_of_eight(), two_requests()), 10);
  }
}

// Every second step refreshes where steps decide one token, every step where they decide two.
TEST(DeviceGraphs, EndWhereFlashblockRefreshes) {
  DecodeOptions options = options_of_eight();
  options.unmasking.strategy = "low_confidence_dynamic";
  options.unmasking.threshold = 0.5;
  const auto graphs = [&](int64_t tau) {
    const auto make = [&] { return make_flashblock_policy(flashblock(tau, false)); };
    return graphs_of_equal_run(tiny_config(), make, options, two_requests());
  };
  const int64_t refreshing = graphs(2);
  EXPECT_GT(refreshing, 0);
  EXPECT_LT(refreshing, graphs(9));  // no step decides as many
}

TEST(DeviceGraphs, RepeatWhatMageAndSparsedSelected) {
  for (const bool residual : {false, true}) {
    SCOPED_TRACE(residual);
    const auto mage = [&] { return make_mage_policy(selection(5, residual)); };
    EXPECT_GT(graphs_of_equal_run(tiny_config(), mage, options_of_eight(), two_requests()), 10);
  }
  for (const SparseDScope scope : {SparseDScope::block, SparseDScope::run}) {
    const auto sparsed = [&] { return make_sparsed_policy(selection(5), scope); };
    EXPECT_GT(
        graphs_of_equal_run(tiny_config(), sparsed, options_of_eight(), {tiny_request(0, 17, 32)}),
        10);
  }
}

TEST(DeviceGraphs, AreNotMadeWhereKeysAreChosenAtEveryStep) {
  const auto quest = [&] { return make_quest_policy(selection(5), 4); };
  EXPECT_EQ(graphs_of_equal_run(tiny_config(), quest, options_of_eight(), two_requests()), 0);
}

TEST(DeviceGraphs, DecodeSubBlocksWithBothCaches) {
  ModelConfig config = tiny_config();
  config.model_type = "Fast_dLLM_Qwen";
  config.qk_norm = false;
  config.attention_bias = true;
  config.logit_shift = 1;
  DecodeOptions options = options_of_eight();
  options.sub_block_length = 4;
  for (const std::string cache : {"commit", "block"}) {
    SCOPED_TRACE(cache);
    options.cache.cache = cache;
    EXPECT_GT(graphs_of_equal_run(config, make_exact_policy, options, two_requests()), 3);
  }
}

TEST(DeviceGraphs, DecodeMixturesOfExperts) {
  ModelConfig config = tiny_mixture_config();
  EXPECT_GT(graphs_of_equal_run(config, make_exact_policy, options_of_eight(), two_requests()), 10);
  config.moe->intermediate_size = 13;  // not 16 bytes: the host groups the rows
  EXPECT_EQ(graphs_of_equal_run(config, make_exact_policy, options_of_eight(), two_requests()), 0);
}

/// Says that its steps are the same, and waits in them.
class WaitingPolicy : public AttentionPolicy {
 public:
  std::string name() const override { return "waiting"; }
  AttentionParts attend(const AttentionInput& input, const ExternalKeys& external) override {
    (void)input.q.sum().item<float>();
    return exact_attention(input, external);
  }
  std::optional<std::vector<int64_t>> repeats() const override { return std::vector<int64_t>(); }
};

TEST(DeviceGraphs, AreGivenUpWhereTheyCanNotBeCaptured) {
  const auto make = [] { return std::make_unique<WaitingPolicy>(); };
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(graphs_of_equal_run(tiny_config(), make, options_of_eight(), two_requests()), 0);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(
      said.find("decoding continues without CUDA graphs: CUDA error: operation not permitted"),
      std::string::npos)
      << said;
  EXPECT_EQ(said.find("decoding continues", said.find("decoding continues") + 1),
            std::string::npos);
}

/// Says that its steps are the same, and attends to a copy of the keys that it makes before each.
class CopyingPolicy : public WaitingPolicy {
 public:
  explicit CopyingPolicy(bool same) : same_(same) {}
  void begin_pass(const PassContext& /*context*/) override { copy_.reset(); }
  AttentionParts attend(const AttentionInput& input, const ExternalKeys& external) override {
    if (input.layer == 0 || !copy_) return exact_attention(input, external);
    const at::Tensor key = copy_->narrow(2, 0, external.key.size(2));
    return exact_attention(input, {key, external.value, external.length});
  }
  std::optional<std::vector<int64_t>> repeats() const override {
    // The last thing before a pass: here the copy is made, outside of any graph.
    copy_ = at::ones({1, 2, 64, 10}, at::kCUDA);
    if (same_) return std::vector<int64_t>();
    return std::nullopt;
  }

 private:
  bool same_;
  mutable std::optional<at::Tensor> copy_;
};

// So that the runs above, whose tokens are right, read no memory that was given back.
TEST(DeviceGraphs, ReadNanWhereTheirMemoryWasGivenBack) {
  const BlockDiffusionModel device = moved_to(at::kCUDA, tiny_model(7));
  const std::vector<DecodeRequest> requests{tiny_request(0, 17, 32)};
  const auto tokens = [&](bool same) {
    const auto make = [same] { return std::make_unique<CopyingPolicy>(same); };
    return tokens_of(device, make, options_of_eight(), requests);
  };
  EXPECT_NO_THROW(tokens(false));
  EXPECT_THROW(tokens(true), CheckpointError);  // NaN in the logits
}

}  // namespace
}  // namespace blockscope
