// Decoding on the emulated cuda:0 compared with the CPU, where the command line's tests have no
// shipped model for it: sub-blocks (Fast-dLLM v2), mixtures of experts, and every way of choosing
// tokens.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "probe/decode/decoder.h"
#include "tests/support/emulated_cuda.h"
#include "tests/support/tiny_model.h"

namespace blockscope {
namespace {

using namespace testing;

/// Two prompts of different lengths decoded together, on both.
void expect_equal_tokens(const ModelConfig& config, const DecodeOptions& options) {
  const BlockDiffusionModel host = tiny_model(7, config);
  const BlockDiffusionModel device = moved_to(at::kCUDA, host);
  const std::vector<DecodeRequest> requests{tiny_request(0, 9, 16), tiny_request(1, 14, 16)};
  PassLog here, there;
  const auto want = decode_exact(host, options, requests, &here);
  emulated_cuda::reset_counters();
  const auto got = decode_exact(device, options, requests, &there);
  EXPECT_GT(emulated_cuda::counters().launches, 0) << "no kernel ran";
  EXPECT_EQ(there.passes.size(), here.passes.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i].generated, want[i].generated);
}

TEST(DeviceDecode, SubBlocksWithBothCaches) {
  ModelConfig config = tiny_config();
  config.model_type = "Fast_dLLM_Qwen";
  config.qk_norm = false;
  config.attention_bias = true;
  config.logit_shift = 1;
  DecodeOptions options = tiny_options();
  options.unmasking.block_length = 8;
  options.unmasking.denoising_steps = 8;
  options.sub_block_length = 4;
  for (const std::string cache : {"commit", "block"}) {
    SCOPED_TRACE(cache);
    options.cache.cache = cache;
    expect_equal_tokens(config, options);
  }
}

TEST(DeviceDecode, MixturesOfExperts) {
  expect_equal_tokens(tiny_mixture_config(), tiny_options());
}

TEST(DeviceDecode, EveryWayOfChoosingTokens) {
  for (const std::string strategy :
       {"sequential", "low_confidence_static", "low_confidence_dynamic", "entropy_bounded",
        "threshold", "factor", "prefix_ordered", "klass", "wino"}) {
    for (const RankBy rank_by : {RankBy::kConfidence, RankBy::kMargin, RankBy::kNegativeEntropy}) {
      SCOPED_TRACE(strategy + ", ranked by " + std::to_string(static_cast<int>(rank_by)));
      DecodeOptions options = tiny_options();
      options.unmasking.strategy = strategy;
      options.unmasking.rank_by = rank_by;
      options.unmasking.threshold = rank_by == RankBy::kNegativeEntropy ? -1.0 : 0.4;
      expect_equal_tokens(tiny_config(), options);
      options.sampling = {.temperature = 0.7, .top_k = 20, .top_p = 0.95, .seed = 3};
      expect_equal_tokens(tiny_config(), options);
    }
  }
}

}  // namespace
}  // namespace blockscope
