// The observer of `bench` hands on every call, so that what recording costs is all of it.
#include "probe/commands/timing_observer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/recorded_run.h"

namespace blockscope {
namespace {

using namespace testing;  // NOLINT: the helpers of this folder
using ::testing::ElementsAre;

/// The calls that it got.
class Calls : public DecodeObserver {
 public:
  bool wants_weights(const PassContext& /*context*/, int64_t layer) const override {
    return layer == 3;
  }
  void on_attention(const AttentionView& /*view*/) override { names.emplace_back("attention"); }
  void on_hidden(const PassContext& /*context*/, int64_t /*layer*/,
                 const at::Tensor& /*hidden*/) override {
    names.emplace_back("hidden");
  }
  void on_router(const PassContext& /*context*/, int64_t /*layer*/,
                 const RouterChoice& /*choice*/) override {
    names.emplace_back("router");
  }
  void on_staleness(const PassContext& /*context*/, const Staleness& /*of_layers*/) override {
    names.emplace_back("staleness");
  }
  void on_committed_keys(const CommittedKeys& /*keys*/) override { names.emplace_back("keys"); }
  void on_logits(const PassContext& /*context*/, const std::vector<int64_t>& /*slots*/,
                 const at::Tensor& /*logits*/) override {
    names.emplace_back("logits");
  }
  void on_masked_logits(const PassContext& /*context*/, const std::vector<int64_t>& /*slots*/,
                        const std::vector<std::vector<bool>>& /*predicted*/,
                        const at::Tensor& /*logits*/) override {
    names.emplace_back("masked logits");
  }
  void on_pass(const PassResult& /*result*/) override { names.emplace_back("pass"); }
  void on_remove(int64_t /*slot*/) override { names.emplace_back("remove"); }

  std::vector<std::string> names;
};

/// Every call once.
void call_all(DecodeObserver& observer) {
  const at::Tensor some = at::zeros({1});
  const PassContext context;
  const ExternalKeys external{some, some, some};
  const AttentionParts parts;
  observer.on_hidden(context, 0, some);
  observer.on_attention({context, {0, some, some, some}, external, parts, nullptr});
  observer.on_router(context, 0, {some, some});
  observer.on_logits(context, {}, some);
  observer.on_masked_logits(context, {}, {}, some);
  observer.on_staleness(context, {some, some, some});
  observer.on_committed_keys({0, 0, 0, some, some});
  observer.on_pass({context, 0, 0, 0.0, 0, 0, {}});
  observer.on_remove(0);
}

TEST(TimingObserver, HandsEveryCallOn) {
  Calls calls;
  Timing timing;
  TimingObserver observer(&calls, timing);
  call_all(observer);
  EXPECT_THAT(calls.names, ElementsAre("hidden", "attention", "router", "logits", "masked logits",
                                       "staleness", "keys", "pass", "remove"));
  EXPECT_TRUE(observer.wants_every_prediction());
  EXPECT_TRUE(observer.wants_logits());
  EXPECT_TRUE(observer.looks_inside({}));
  EXPECT_TRUE(observer.wants_weights({}, 3));
  EXPECT_FALSE(observer.wants_weights({}, 2));
  EXPECT_EQ(timing.block_passes, 1);
}

TEST(TimingObserver, AsksForNothingWithoutARecorder) {
  Timing timing;
  TimingObserver observer(nullptr, timing);
  call_all(observer);
  EXPECT_FALSE(observer.wants_every_prediction());
  EXPECT_FALSE(observer.wants_logits());
  EXPECT_FALSE(observer.looks_inside({}));
  EXPECT_FALSE(observer.wants_weights({}, 3));
  EXPECT_EQ(timing.block_passes, 1);
}

/// Of a mixture of experts.
TEST(TimingObserver, ARunCallsItAsItCallsTheRecorder) {
  const BlockDiffusionModel model = tiny_model(7, tiny_mixture_config());
  Calls alone, behind;
  decode_exact(model, tiny_options(), {tiny_request(0, 9, 8)}, &alone);
  Timing timing;
  TimingObserver observer(&behind, timing);
  decode_exact(model, tiny_options(), {tiny_request(0, 9, 8)}, &observer);
  EXPECT_EQ(behind.names, alone.names);
  EXPECT_THAT(alone.names, ::testing::Contains("router"));
  EXPECT_GT(timing.tokens, 0);
  EXPECT_GT(timing.denoising_passes, 0);
  EXPECT_GT(timing.prefill, 0.0);
}

}  // namespace
}  // namespace blockscope
