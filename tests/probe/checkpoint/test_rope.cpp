// Inverse frequencies against transformers' own, for every scaling type and both spellings of the
// keys. The judge computes in float32, hence the relative tolerance.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "probe/checkpoint/rope.h"
#include "tests/probe/checkpoint/checkpoint_fixture.h"

namespace blockscope {
namespace {

constexpr double kRelative = 3e-6;

TEST(Rope, FrequenciesEqualTransformersForEveryScalingType) {
  const auto cases = nlohmann::json::parse(test::read_text(test::kData / "rope.json"));
  ASSERT_GE(cases.size(), 20u);
  for (const auto& item : cases) {
    ConfigTexts texts;
    texts.config = item["config"].dump();
    SCOPED_TRACE(texts.config + "\nregenerate with tests/probe/checkpoint/make_fixtures.py");
    const ModelConfig config = parse_model_config(texts);
    const auto result =
        rope_inverse_frequencies(config.rope, config.head_dim, item["seq_len"].get<std::int64_t>());
    const auto expected = item["inv_freq"].get<std::vector<double>>();
    ASSERT_EQ(result.inv_freq.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(result.inv_freq[i], expected[i], kRelative * expected[i]) << "pair " << i;
    }
    EXPECT_NEAR(result.attention_factor, item["attention_factor"].get<double>(), 1e-12);
  }
}

}  // namespace
}  // namespace blockscope
