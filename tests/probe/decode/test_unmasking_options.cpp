// Options of the strategies that make no sense, and the names of strategies and quotas.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "decode_record/base/error.h"
#include "probe/strategies/strategy_table.h"

namespace blockscope {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string refusal_of(const UnmaskingOptions& options) {
  try {
    check_unmasking_options(options);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(UnmaskingOptionsCheck, NamesTheOptionThatMakesNoSense) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  using O = UnmaskingOptions;
  struct Case {
    const char* strategy;
    const char* names;
    std::function<void(O&)> change;
  };
  const std::vector<Case> cases{
      {"sequential", "denoising steps", [](O& o) { o.denoising_steps = 9; }},
      {"sequential", "denoising steps", [](O& o) { o.denoising_steps = 0; }},
      {"sequential", "block length", [](O& o) { o.block_length = 0; }},
      {"threshold", "threshold", [](O& o) { o.threshold = 1.01; }},
      {"threshold", "threshold", [](O& o) { o.threshold = -0.01; }},
      {"klass", "threshold", [&](O& o) { o.threshold = nan; }},
      {"entropy_bounded", "eb_threshold", [](O& o) { o.eb_threshold = -1; }},
      {"entropy_bounded", "eb_threshold", [&](O& o) { o.eb_threshold = nan; }},
      {"factor", "factor: expected", [](O& o) { o.factor = 0; }},
      {"low_confidence_static", "density_sigma", [](O& o) { o.density_sigma = -1; }},
      {"klass", "kl_threshold", [](O& o) { o.kl_threshold = 0; }},
      {"klass", "kl_history", [](O& o) { o.kl_history = 0; }},
      {"wino", "threshold_back", [](O& o) { o.threshold_back = 0; }},
      {"wino", "threshold_back", [&](O& o) { o.threshold_back = nan; }},
      {"pc_sampler", "pc_lambda", [](O& o) { o.pc_lambda = -1; }},
      {"pc_sampler", "pc_alpha", [](O& o) { o.pc_alpha = 0; }},
      {"pc_sampler", "frequencies=FILE", [](O& o) { o.frequencies = nullptr; }},
      {"klass", "quota", [](O& o) { o.quota = Quota::kCarry; }}};
  for (const Case& one : cases) {
    UnmaskingOptions options;
    options.strategy = one.strategy;
    options.block_length = options.denoising_steps = 8;
    options.frequencies = std::make_shared<TokenFrequencies>();
    EXPECT_EQ(refusal_of(options), "accepted") << one.strategy;
    one.change(options);
    EXPECT_THAT(refusal_of(options), HasSubstr(one.names));
  }
}

TEST(StrategyTable, HasAnExampleASourceAndADefaultForEveryEntry) {
  for (const StrategyEntry& entry : strategy_table()) {
    EXPECT_EQ(read_strategy(entry.example).strategy, entry.name);
    EXPECT_FALSE(entry.meaning.empty());
    EXPECT_FALSE(entry.source.empty());
    EXPECT_EQ(read_strategy(entry.example).threshold,
              entry.name == "klass"                                       ? 0.9
              : entry.name == "wino"                                      ? 0.6
              : entry.name == "joint_threshold"                           ? 0.7
              : entry.name == "joint_threshold_indel"                     ? 0.5
              : entry.example.find(",threshold=0.9") != std::string::npos ? 0.9
                                                                          : 0.85)
        << entry.name;
  }
}

TEST(StrategyTable, RefusesAnUnknownNameOrWordAndListsThem) {
  const auto refused = [](const char* text) {
    try {
      read_strategy(text);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(refused("greedy"), AllOf(HasSubstr("'greedy'"), HasSubstr("entropy_bounded")));
  EXPECT_THAT(refused("klass,quota=cosine"), HasSubstr("quota: expected even or linear, got"));
  EXPECT_THAT(refused("klass,quota=carry"), HasSubstr("quota: expected even or linear, got"));
  EXPECT_THAT(refused("threshold,quota=linear"), HasSubstr("quota: expected even or carry, got"));
  EXPECT_THAT(refused("klass,klass_choose=random"), HasSubstr("all, max_conf or min_kl"));
  EXPECT_THAT(refused("factor,rank_by=entropy"),
              HasSubstr("rank_by: expected confidence, margin or negative_entropy, got"));
  EXPECT_THAT(refused("sequential,rank_by=margin"), HasSubstr("expected quota, got 'rank_by'"));
  EXPECT_THAT(refused("pc_sampler"), HasSubstr("expected frequencies=FILE"));
  EXPECT_EQ(read_strategy("threshold,quota=carry").quota, Quota::kCarry);
  EXPECT_EQ(read_strategy("klass,klass_choose=min_kl").klass_choose, KlassChoose::kMinKl);
  EXPECT_EQ(read_strategy("factor,rank_by=margin").rank_by, RankBy::kMargin);
}

}  // namespace
}  // namespace blockscope
