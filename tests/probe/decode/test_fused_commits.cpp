// --cache blockd against --cache commit: the same steps, values and keys in fewer passes.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "decode_record/base/error.h"
#include "probe/decode/decoder.h"
#include "probe/policies/flashblock_policy.h"
#include "probe/policies/mage_policy.h"
#include "probe/policies/quest_policy.h"
#include "probe/policies/sparsed_policy.h"
#include "tests/support/tiny_model.h"

namespace blockscope {
namespace {

using namespace testing;  // NOLINT: the helpers of this folder
using ::testing::HasSubstr;
constexpr double kTolerance = 2e-5;  // float32 sums in another order

/// What a run showed, by sequence, block, step and layer: whatever the passes were.
struct Watch : PassLog {
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t>;
  std::map<Key, std::map<std::string, at::Tensor>> values;
  std::map<std::tuple<int64_t, int64_t, int64_t>, at::Tensor> keys;  // sequence, layer, start
  int64_t reused = 0, selected = 0;

  void put(const PassContext& context, int64_t layer, const std::string& name,
           const at::Tensor& entries) {
    ASSERT_EQ(entries.size(0), std::ssize(context.sequences)) << name;
    for (size_t s = 0; s < context.sequences.size(); ++s) {
      const SequencePass& pass = context.sequences[s];
      if (pass.kind != PassKind::denoise) continue;
      values[{pass.sequence, pass.block, pass.step, layer}][name] =
          entries.select(0, static_cast<int64_t>(s)).to(at::kFloat).clone();
    }
  }
  void on_attention(const AttentionView& view) override {
    const AttentionParts& used = view.used;
    put(view.context, view.input.layer, "A_out", used.external);
    put(view.context, view.input.layer, "A_in", used.internal);
    put(view.context, view.input.layer, "L_out", used.lse_external);
    put(view.context, view.input.layer, "L_in", used.lse_internal);
    put(view.context, view.input.layer, "k", view.input.k);
    put(view.context, view.input.layer, "N", view.external.length);
    if (used.reused.defined()) reused += used.reused.sum().item<int64_t>();
    if (used.selected.defined()) selected += used.selected.ge(0).sum().item<int64_t>();
  }
  void on_hidden(const PassContext& context, int64_t layer, const at::Tensor& hidden) override {
    put(context, layer, "hidden", hidden);
  }
  void on_committed_keys(const CommittedKeys& stored) override {
    keys[{stored.sequence, stored.layer, stored.start}] = stored.key.clone();
  }
  /// Without the prefill.
  int64_t block_passes() const {
    return std::count_if(passes.begin(), passes.end(), [](const Entry& entry) {
      return entry.context.sequences.front().kind != PassKind::prefill;
    });
  }
  int64_t steps() const { return std::ssize(values) / 2; }  // two layers
};

void expect_near(const at::Tensor& a, const at::Tensor& b, const std::string& what) {
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  EXPECT_TRUE(at::allclose(a, b, kTolerance, kTolerance))
      << what << " differs by " << (a - b).abs().max().item<float>();
}

void expect_same(const Watch& commit, const Watch& blockd) {
  ASSERT_EQ(commit.values.size(), blockd.values.size());
  for (const auto& [key, parts] : commit.values) {
    ASSERT_TRUE(blockd.values.count(key));
    for (const auto& [name, value] : parts) {
      expect_near(value, blockd.values.at(key).at(name),
                  name + " of block " + std::to_string(std::get<1>(key)) + ", step " +
                      std::to_string(std::get<2>(key)));
    }
  }
  for (const auto& [key, value] : blockd.keys) {
    ASSERT_TRUE(commit.keys.count(key));
    expect_near(value, commit.keys.at(key), "stored key");
  }
}

void expect_same(const std::vector<DecodeOutcome>& commit,
                 const std::vector<DecodeOutcome>& blockd) {
  ASSERT_EQ(commit.size(), blockd.size());
  for (size_t i = 0; i < commit.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(commit[i].generated, blockd[i].generated);
    EXPECT_EQ(commit[i].denoising_steps, blockd[i].denoising_steps);
    EXPECT_EQ(commit[i].masks_left, blockd[i].masks_left);
    EXPECT_EQ(commit[i].reason, blockd[i].reason);
  }
}

DecodeOptions with_cache(DecodeOptions options, std::string kind) {
  options.cache.cache = kind;
  return options;
}

/// Prompts that end inside a block and at its end; sequences of 1 to 6 blocks.
std::vector<DecodeRequest> unequal_requests() {
  return {tiny_request(0, 3, 4), tiny_request(1, 21, 20), tiny_request(2, 8, 1),
          tiny_request(3, 13, 11), tiny_request(4, 16, 12)};
}

class FusedStrategy : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Strategies, FusedStrategy,
                         ::testing::Values("sequential", "low_confidence_static",
                                           "low_confidence_dynamic", "entropy_bounded", "factor",
                                           "klass"),
                         [](const auto& strategy) { return strategy.param; });

TEST_P(FusedStrategy, HasTheStepsAndValuesOfCommitInABatchOfUnequalSequences) {
  const BlockDiffusionModel model = tiny_model(31);
  DecodeOptions options = tiny_options();
  options.unmasking.strategy = GetParam();
  options.unmasking.threshold = 0.3;
  options.unmasking.eb_threshold = 2.0;
  options.unmasking.kl_threshold = 2.0;
  for (const int64_t steps : {1, 3, 4}) {
    SCOPED_TRACE(steps);
    options.unmasking.denoising_steps = steps;
    Watch commit, blockd;
    const auto expected = decode_exact(model, options, unequal_requests(), &commit);
    const auto got =
        decode_exact(model, with_cache(options, "blockd"), unequal_requests(), &blockd);
    expect_same(expected, got);
    expect_same(commit, blockd);
    for (const DecodeRequest& request : unequal_requests()) {
      const auto a = commit.steps_of(request.sequence, kTinyBlock);
      const auto b = blockd.steps_of(request.sequence, kTinyBlock);
      ASSERT_EQ(a.size(), b.size());
      for (size_t i = 0; i < a.size(); ++i) {
        EXPECT_EQ(a[i].positions, b[i].positions);
        EXPECT_EQ(a[i].tokens, b[i].tokens);
        for (size_t j = 0; j < a[i].confidence.size(); ++j) {
          EXPECT_NEAR(a[i].confidence[j], b[i].confidence[j], kTolerance);
        }
      }
    }
  }
}

TEST(FusedCommits, TakeAPassLessForEveryBlockAndLeaveTheLastOneUncommitted) {
  const BlockDiffusionModel model = tiny_model(32);
  for (const DecodeRequest& request : unequal_requests()) {
    SCOPED_TRACE(request.sequence);
    Watch commit, blockd;
    decode_exact(model, tiny_options(), {request}, &commit);
    decode_exact(model, with_cache(tiny_options(), "blockd"), {request}, &blockd);
    const auto length = static_cast<int64_t>(request.prompt.size());
    const int64_t first = length / kTinyBlock;
    const int64_t end = (length + request.gen_length + kTinyBlock - 1) / kTinyBlock;
    EXPECT_EQ(commit.block_passes() - blockd.block_passes(), end - first);
    EXPECT_EQ(blockd.block_passes(), blockd.steps());
    int64_t next = first;
    for (const PassLog::Entry& entry : blockd.passes) {
      for (const FusedCommit& fused : entry.context.commits) {
        const SequencePass& denoising = entry.context.sequences.front();
        EXPECT_EQ(fused.pass.kind, PassKind::commit);
        EXPECT_EQ(fused.pass.block, next++);
        EXPECT_EQ(fused.pass.context_length, fused.pass.block * kTinyBlock);
        EXPECT_EQ(denoising.block, fused.pass.block + 1);
        EXPECT_TRUE(denoising.first_step());
      }
    }
    EXPECT_EQ(next, end - 1);
    // Of each layer: the prompt's whole blocks, if any, and every block but the last.
    EXPECT_EQ(std::ssize(blockd.keys), 2 * ((first > 0 ? 1 : 0) + end - 1 - first));
  }
}

TEST(FusedCommits, ShowEveryPolicyTheSamePrefixInTheSameOrder) {
  const BlockDiffusionModel model = tiny_model(33);
  const ModelConfig& config = model.config();
  SelectionOptions half;
  half.num_layers = config.num_layers;
  half.density = 0.5;
  SelectionOptions residual = half;
  residual.residual = true;
  using Make = std::function<std::unique_ptr<AttentionPolicy>()>;
  const std::vector<Make> policies{
      [&] {
        return make_flashblock_policy({config.num_layers, config.num_heads, {2}, {}});
      },
      [&] { return make_mage_policy(half); },
      [&] { return make_mage_policy(residual); },
      [&] { return make_quest_policy(half, 3); },
      [&] { return make_sparsed_policy(half, SparseDScope::block); },
      [&] { return make_sparsed_policy(half, SparseDScope::run); }};
  for (const Make& make : policies) {
    Watch commit, blockd;
    const auto reference = make();
    const auto policy = make();
    SCOPED_TRACE(policy->name());
    const auto expected =
        decode_all(model, *reference, tiny_options(), unequal_requests(), &commit);
    const auto got = decode_all(model, *policy, with_cache(tiny_options(), "blockd"),
                                unequal_requests(), &blockd);
    expect_same(expected, got);
    expect_same(commit, blockd);
    EXPECT_GT(blockd.reused + blockd.selected, 0) << "the case approximates nothing";
    EXPECT_EQ(commit.reused, blockd.reused);
  }
}

TEST(FusedCommits, EndWhereAStopIdEndsCommit) {
  const BlockDiffusionModel model = tiny_model(34);
  const std::vector<DecodeRequest> requests{tiny_request(0, 9, 24), tiny_request(1, 4, 24)};
  DecodeOptions options = tiny_options();
  const auto whole = decode_exact(model, options, requests);
  options.stop_ids = {whole[0].generated[5]};  // the third position of its second block
  Watch commit, blockd;
  const auto expected = decode_exact(model, options, requests, &commit);
  const auto got = decode_exact(model, with_cache(options, "blockd"), requests, &blockd);
  ASSERT_EQ(expected[0].reason, FinishReason::stop);
  EXPECT_LT(expected[0].denoising_steps, whole[0].denoising_steps) << "choose another seed";
  expect_same(expected, got);
  expect_same(commit, blockd);
}

TEST(FusedCommits, CommitTheMasksThatTheStepsLeave) {
  const BlockDiffusionModel model = tiny_model(35);
  DecodeOptions options = tiny_options();
  options.unmasking.denoising_steps = 2;
  options.unmasking.strategy = "threshold";
  // An id that the model often predicts is the mask: such positions stay masks.
  DecodeRequest request = tiny_request(0, 6, 40);
  const auto plain = decode_exact(model, options, {request})[0].generated;
  std::map<int64_t, int64_t> counts;
  for (const int64_t token : plain) ++counts[token];
  options.mask_token_id =
      std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) {
        return a.second < b.second;
      })->first;
  std::replace(request.prompt.begin(), request.prompt.end(), options.mask_token_id, int64_t{0});
  const auto expected = decode_exact(model, options, {request});
  EXPECT_GT(expected[0].masks_left, 0) << "choose another seed";
  expect_same(expected, decode_exact(model, with_cache(options, "blockd"), {request}));
}

TEST(FusedCommits, ReplayRunsOfEitherKind) {
  const BlockDiffusionModel model = tiny_model(36);
  for (const std::string recorded : {"commit", "blockd"}) {
    const std::string replayed = recorded == "commit" ? "blockd" : "commit";
    Watch first, second;
    std::vector<DecodeRequest> requests{tiny_request(0, 6, 13), tiny_request(1, 17, 5)};
    const auto run = decode_exact(model, with_cache(tiny_options(), recorded), requests, &first);
    for (DecodeRequest& request : requests) {
      request.replayed = true;
      request.replay = first.steps_of(request.sequence, kTinyBlock);
    }
    const auto again = decode_exact(model, with_cache(tiny_options(), replayed), requests, &second);
    for (size_t i = 0; i < run.size(); ++i) {
      EXPECT_EQ(again[i].generated, run[i].generated);
      EXPECT_EQ(again[i].denoising_steps, run[i].denoising_steps);
      EXPECT_EQ(again[i].reason, FinishReason::replayed);
    }
    recorded == "commit" ? expect_same(first, second) : expect_same(second, first);
  }
}

TEST(FusedCommits, AreRefusedWhereBlocksAreNotCommittedByAPassOfTheirOwn) {
  const auto refusal = [](auto change) -> std::string {
    DecodeOptions options = with_cache(tiny_options(), "blockd");
    change(options);
    try {
      check_decode_options(options, tiny_config());
    } catch (const UsageError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal([](DecodeOptions&) {}), "accepted");
  EXPECT_THAT(refusal([](DecodeOptions& o) { o.bidirectional = true; }),
              HasSubstr("bidirectional model"));
  EXPECT_THAT(refusal([](DecodeOptions& o) { o.sub_block_length = 2; }), HasSubstr("Fast_dLLM"));
  EXPECT_THAT(refusal([](DecodeOptions& o) {
                o.mask_token_id = -1;
                o.unmasking.block_length = o.unmasking.denoising_steps = 1;
              }),
              HasSubstr("token by token"));
}

}  // namespace
}  // namespace blockscope
