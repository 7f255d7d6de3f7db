// Options of the strategies that make no sense, and the names of strategies and quotas.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "decode_record/base/error.h"
#include "probe/decode/quota.h"
#include "probe/decode/unmasking.h"

namespace blockscope {
namespace {

using ::testing::HasSubstr;

TEST(UnmaskingOptionsCheck, NamesTheFlagThatMakesNoSense) {
  const auto refused = [](auto change) {
    UnmaskingOptions options;
    options.block_length = options.denoising_steps = 8;
    change(options);
    try {
      check_unmasking_options(options);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  using O = UnmaskingOptions;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(refused([](O&) {}), "accepted");
  EXPECT_THAT(refused([](O& o) { o.denoising_steps = 9; }), HasSubstr("--denoising-steps"));
  EXPECT_THAT(refused([](O& o) { o.denoising_steps = 0; }), HasSubstr("--denoising-steps"));
  EXPECT_THAT(refused([](O& o) { o.block_length = 0; }), HasSubstr("--block-length"));
  EXPECT_THAT(refused([](O& o) { o.threshold = 1.01; }), HasSubstr("--threshold"));
  EXPECT_THAT(refused([&](O& o) { o.threshold = nan; }), HasSubstr("--threshold"));
  EXPECT_THAT(refused([](O& o) { o.eb_threshold = -1; }), HasSubstr("--eb-threshold"));
  EXPECT_THAT(refused([&](O& o) { o.eb_threshold = nan; }), HasSubstr("--eb-threshold"));
  EXPECT_THAT(refused([](O& o) { o.factor = 0; }), HasSubstr("--factor"));
  EXPECT_THAT(refused([](O& o) { o.density_sigma = -1; }), HasSubstr("--density-sigma"));
  EXPECT_THAT(refused([](O& o) { o.kl_threshold = 0; }), HasSubstr("--kl-threshold"));
  EXPECT_THAT(refused([](O& o) { o.kl_history = 0; }), HasSubstr("--kl-history"));
  EXPECT_THAT(refused([](O& o) { o.threshold_back = 0; }), HasSubstr("--threshold-back"));
  EXPECT_THAT(refused([&](O& o) { o.threshold_back = nan; }), HasSubstr("--threshold-back"));
  EXPECT_THAT(refused([](O& o) { o.pc_lambda = -1; }), HasSubstr("--pc-lambda"));
  EXPECT_THAT(refused([](O& o) { o.pc_alpha = 0; }), HasSubstr("--pc-alpha"));
}

TEST(QuotaNames, AreReadBackAndAnUnknownOneIsRefused) {
  EXPECT_THROW(parse_quota("cosine"), UsageError);
  EXPECT_EQ(parse_quota(quota_name(Quota::kLinear)), Quota::kLinear);
}

TEST(UnmaskingStrategyNames, AreReadBackAndAnUnknownOneListsThem) {
  for (int strategy = 0; strategy < 10; ++strategy) {
    const Strategy value = static_cast<Strategy>(strategy);
    EXPECT_EQ(parse_strategy(strategy_name(value)), value);
  }
  try {
    parse_strategy("greedy");
    FAIL() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'greedy'"));
    EXPECT_THAT(error.what(), HasSubstr("entropy_bounded"));
  }
}

}  // namespace
}  // namespace blockscope
