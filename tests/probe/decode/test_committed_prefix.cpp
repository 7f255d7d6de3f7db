// A prefix computed once and decoded from gives what prefill and decoding in one go give.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "decode_record/base/error.h"
#include "tests/support/tiny_model.h"

namespace blockscope {
namespace {

using namespace testing;  // NOLINT: the tiny model

TEST(CommittedPrefix, DecodesBitForBitAsAPrefillInTheSameRun) {
  const BlockDiffusionModel model = tiny_model();
  for (const int64_t length : {3, 4, 18, 37}) {  // 3: no whole block
    DecodeRequest request = tiny_request(0, length, 12);
    PassLog computed, given;
    const auto expected = decode_exact(model, tiny_options(), {request}, &computed);
    request.prefix =
        std::make_shared<const CommittedPrefix>(prefill_prompt(model, tiny_options(), request));
    EXPECT_EQ(request.prefix->length, length / kTinyBlock * kTinyBlock);
    const auto got = decode_exact(model, tiny_options(), {request}, &given);
    EXPECT_EQ(got.front().generated, expected.front().generated);
    const auto a = computed.steps_of(0, kTinyBlock);
    const auto b = given.steps_of(0, kTinyBlock);
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].confidence, b[i].confidence);
  }
}

TEST(CommittedPrefix, ServesOneSequenceOfABatch) {
  const BlockDiffusionModel model = tiny_model();
  std::vector<DecodeRequest> requests{tiny_request(0, 9, 8), tiny_request(1, 21, 8)};
  const auto expected = decode_exact(model, tiny_options(), requests);
  requests[1].prefix =
      std::make_shared<const CommittedPrefix>(prefill_prompt(model, tiny_options(), requests[1]));
  const auto got = decode_exact(model, tiny_options(), requests);
  EXPECT_EQ(got[0].generated, expected[0].generated);
  EXPECT_EQ(got[1].generated, expected[1].generated);
}

TEST(CommittedPrefix, OfAnotherPromptOrModelIsRefused) {
  const BlockDiffusionModel model = tiny_model();
  DecodeRequest request = tiny_request(0, 18, 8);
  request.prefix = std::make_shared<const CommittedPrefix>(
      prefill_prompt(model, tiny_options(), tiny_request(1, 12, 8)));
  EXPECT_THROW(decode_exact(model, tiny_options(), {request}), Error);
  ModelConfig deeper = tiny_config();
  deeper.num_layers = 3;
  request.prefix =
      std::make_shared<const CommittedPrefix>(random_prefix(deeper, 16, at::kFloat, 1));
  EXPECT_THROW(decode_exact(model, tiny_options(), {request}), Error);
}

TEST(CommittedPrefix, RandomOnesRepeatBySeed) {
  const CommittedPrefix a = random_prefix(tiny_config(), 8, at::kFloat, 1);
  const CommittedPrefix b = random_prefix(tiny_config(), 8, at::kFloat, 1);
  const CommittedPrefix c = random_prefix(tiny_config(), 8, at::kFloat, 2);
  for (size_t layer = 0; layer < a.key.size(); ++layer) {
    EXPECT_TRUE(at::equal(a.key[layer], b.key[layer]));
    EXPECT_TRUE(at::equal(a.value[layer], b.value[layer]));
    EXPECT_FALSE(at::equal(a.key[layer], c.key[layer]));
    EXPECT_FALSE(at::equal(a.key[layer], a.value[layer]));
  }
}

}  // namespace
}  // namespace blockscope
