// What a capture is said to need in memory, before it runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "decode_record/base/error.h"
#include "probe/run/capture_cost.h"
#include "probe/run/capture_plan.h"
#include "tests/support/tiny_model.h"

namespace blockscope {
namespace {

using namespace testing;  // NOLINT: the helpers of this folder
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kDistribution = kTinyVocab * 8;  // float64

CaptureCost cost_of(const DecodeOptions& options, int64_t batch_size,
                    const ModelConfig* beside = nullptr,
                    RecordLevel level = RecordLevel::trajectory) {
  LoadedModel model;
  model.config = tiny_config();
  model.dtype = at::kFloat;
  std::vector<RunPrompt> prompts;
  for (const int64_t gen_length : {8, 20, 12}) {
    RunPrompt prompt;
    prompt.request = tiny_request(std::ssize(prompts), 5, gen_length);
    prompts.push_back(prompt);
  }
  RecorderOptions recorder;
  recorder.meta.level = level;
  recorder.meta.layers = {0};
  recorder.meta.kv_heads = {0};
  recorder.meta.head_dim = 1 << 15;  // a key fills a chunk: nothing is rounded up to whole chunks
  recorder.meta.num_layers = model.config.num_layers;
  recorder.meta.block_length = kTinyBlock;
  return capture_cost(recorder, options, prompts, batch_size, model, beside);
}

DecodeOptions klass_options(bool bidirectional) {
  DecodeOptions options = tiny_options();
  options.unmasking.strategy = "klass";
  options.bidirectional = bidirectional;
  if (bidirectional) options.cache.cache = "none";
  return options;
}

TEST(CaptureCost, HasKlassHistoryOfTheBlockAndOfEverythingBehindItWhereAModelPredictsThat) {
  // Sequences of a bidirectional model are decoded one after another: the longest answer counts.
  EXPECT_EQ(cost_of(klass_options(true), 1).history_bytes, 20 * kDistribution);
  EXPECT_EQ(cost_of(klass_options(true), 3).history_bytes, 20 * kDistribution);
  EXPECT_EQ(cost_of(klass_options(false), 1).history_bytes, kTinyBlock * kDistribution);
  EXPECT_EQ(cost_of(klass_options(false), 2).history_bytes, 2 * kTinyBlock * kDistribution);
  DecodeOptions other = klass_options(true);
  other.unmasking.strategy = "threshold";
  EXPECT_EQ(cost_of(other, 3).history_bytes, 0);
}

TEST(CaptureCost, HasTheCachesOfADraftAndItsTarget) {
  ModelConfig target = tiny_config();
  target.num_layers *= 3;
  for (const int64_t batch_size : {1, 2}) {
    EXPECT_EQ(cost_of(tiny_options(), batch_size, &target).kv_cache_bytes,
              4 * cost_of(tiny_options(), batch_size).kv_cache_bytes);
  }
}

TEST(CaptureCost, HasTheKeysThatTheCacheOfABidirectionalModelComputes) {
  // A prompt of 5 and answers of 8, 20 and 12: 2, 5 and 3 blocks of 4 positions.
  const int64_t canvas = 2 * 13 + 5 * 25 + 3 * 17;
  // A later pass computes the keys from its block's start to the end of the canvas. After the last
  // block there are none to keep.
  const int64_t from_block = 8 + (20 + 16 + 12 + 8) + (12 + 8);
  const auto bytes = [](const char* cache) {
    DecodeOptions options = tiny_options();
    options.bidirectional = true;
    options.cache.cache = cache;
    return cost_of(options, 1, nullptr, RecordLevel::full).file_bytes;
  };
  const int64_t dual = bytes("dual");
  ASSERT_GT(bytes("none"), dual);
  EXPECT_EQ((bytes("prefix") - dual) * canvas, (bytes("none") - dual) * from_block);
}

TEST(CaptureCost, ClaimsNoBoundWhereABlockMayGoOnPastItsSchedule) {
  const auto cost = [](const char* strategy) {
    DecodeOptions options = tiny_options();
    options.unmasking.strategy = strategy;
    return cost_of(options, 1);
  };
  const CaptureCost edited = cost("joint_threshold");
  const CaptureCost moved = cost("joint_threshold_indel");
  EXPECT_EQ(edited.forecast_steps, 0);
  EXPECT_EQ(moved.forecast_steps, tiny_options().unmasking.denoising_steps + 16 + 1);
  EXPECT_EQ(moved.file_bytes, edited.file_bytes);
  EXPECT_THAT(size_text(edited), HasSubstr("at most "));
  EXPECT_THAT(size_text(moved), AllOf(HasSubstr("about "), HasSubstr("more if blocks take over ")));
}

TEST(CaptureMemory, RefusesARunWhoseHistoryDoesNotFit) {
  const CaptureCost cost = cost_of(klass_options(true), 1);
  const int64_t rest = cost.kv_cache_bytes + cost.recorder_bytes;
  EXPECT_NO_THROW(check_memory(cost, 0, rest + cost.history_bytes));
  EXPECT_NO_THROW(check_memory(cost, 0, 0)) << "0: unknown";
  try {
    check_memory(cost, 0, rest + cost.history_bytes - 1);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("klass's history"));
    EXPECT_THAT(error.what(), HasSubstr("HINT"));
  }
  EXPECT_THAT(memory_text(CaptureCost{}), Not(HasSubstr("klass")));
}

}  // namespace
}  // namespace blockscope
