// The decoding loop with every strategy: masks as predictions, replay, and FlashBlock in the cases
// where it must equal exact attention.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "decode_record/base/error.h"
#include "probe/decode/decoder.h"
#include "probe/decode/step_decision.h"
#include "probe/policies/flashblock_policy.h"
#include "probe/strategies/strategy_table.h"
#include "tests/support/tiny_model.h"

namespace blockscope {
namespace {

using namespace testing;  // NOLINT: the helpers of this folder
using ::testing::HasSubstr;

DecodeOptions options_with(std::string strategy) {
  DecodeOptions options = tiny_options();
  options.unmasking.strategy = strategy;
  options.unmasking.threshold = 0.3;
  options.unmasking.eb_threshold = 2.0;
  options.unmasking.kl_threshold = 2.0;  // a random model's distributions move a lot
  auto table = std::make_shared<TokenFrequencies>();
  for (int64_t id = 0; id < kTinyVocab; ++id) {
    table->share.push_back(1.0F / static_cast<float>(2 + 5 * id));
  }
  options.unmasking.frequencies = table;
  return options;
}

/// A model whose logits are all zero.
BlockDiffusionModel indifferent_model() {
  const BlockDiffusionModel model = tiny_model(20);
  WeightMap weights = model.weights();
  weights["lm_head.weight"] = at::zeros_like(weights["lm_head.weight"]);
  return {model.config(), weights};
}

class EveryStrategy : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Strategies, EveryStrategy,
                         ::testing::Values("sequential", "low_confidence_static",
                                           "low_confidence_dynamic", "entropy_bounded", "threshold",
                                           "factor", "prefix_ordered", "klass", "pc_sampler"),
                         [](const auto& strategy) { return strategy.param; });

TEST_P(EveryStrategy, LeavesMasksOnlyWhereItSaysSoAndNeverTouchesATokenTwice) {
  const BlockDiffusionModel model = tiny_model(21);
  for (const int64_t steps : {1, 2, 4}) {
    SCOPED_TRACE(steps);
    DecodeOptions options = options_with(GetParam());
    options.unmasking.denoising_steps = steps;
    PassLog log;
    const DecodeOutcome got = decode_exact(model, options, {tiny_request(0, 6, 22)}, &log)[0];
    EXPECT_EQ(got.masks_left, std::count(got.generated.begin(), got.generated.end(), kTinyMask));
    std::vector<bool> decided(got.generated.size(), false);
    for (const ReplayStep& step : log.steps_of(0, kTinyBlock)) {
      EXPECT_LE(step.step, steps);
      for (size_t i = 0; i < step.positions.size(); ++i) {
        const size_t at = static_cast<size_t>(step.positions[i] - 6);
        EXPECT_FALSE(decided[at]);
        decided[at] = true;
        EXPECT_EQ(got.generated[at], step.tokens[i]);
        EXPECT_NE(step.tokens[i], kTinyMask);
      }
    }
    EXPECT_EQ(std::count(decided.begin(), decided.end(), false), got.masks_left);
  }
}

TEST_P(EveryStrategy, DecidesForEachSequenceOfABatchAsForItAlone) {
  const BlockDiffusionModel model = tiny_model(25);
  DecodeOptions options = options_with(GetParam());
  options.unmasking.density_sigma =
      strategy_entry(options.unmasking).heeds("density_sigma") ? 3.0 : 0.0;
  std::vector<DecodeRequest> requests;
  for (int64_t i = 0; i < 4; ++i) requests.push_back(tiny_request(i, 3 + 4 * i, 21 - 5 * i));
  const auto together = decode_exact(model, options, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto alone = decode_exact(model, options, {requests[i]})[0];
    EXPECT_EQ(together[i].generated, alone.generated) << "sequence " << i;
    EXPECT_EQ(together[i].denoising_steps, alone.denoising_steps) << "sequence " << i;
  }
}

/// Looks at masks only.
class MaskLog : public PassLog {
 public:
  bool wants_every_prediction() const override { return false; }
  void on_logits(const PassContext& /*context*/, const std::vector<int64_t>& /*slots*/,
                 const at::Tensor& /*logits*/) override {
    ++logits_shown;
  }
  int64_t logits_shown = 0;
};

TEST_P(EveryStrategy, DecidesTheSameWhereNobodyLooksAtDecidedPositions) {
  const BlockDiffusionModel model = tiny_model(26).packed();
  const DecodeOptions options = options_with(GetParam());
  const std::vector<DecodeRequest> requests{tiny_request(0, 6, 13), tiny_request(1, 17, 5)};
  PassLog all;
  MaskLog masks;
  const auto expected = decode_exact(model, options, requests, &all);
  const auto got = decode_exact(model, options, requests, &masks);
  const bool alone = model.logits_stand_alone() && masks_alone(options);
  EXPECT_EQ(masks.logits_shown, 0);
  ASSERT_EQ(all.passes.size(), masks.passes.size());
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(got[i].generated, expected[i].generated);
  for (size_t i = 0; i < all.passes.size(); ++i) {
    const auto& sequences = all.passes[i].context.sequences;
    for (size_t s = 0; s < sequences.size(); ++s) {
      if (sequences[s].kind != PassKind::denoise) continue;
      const BlockPrediction& a = all.passes[i].decisions[s].prediction;
      const BlockPrediction& b = masks.passes[i].decisions[s].prediction;
      for (size_t p = 0; p < sequences[s].masked.size(); ++p) {
        if (sequences[s].masked[p] || !alone) {
          EXPECT_EQ(a.token[p], b.token[p]);
          EXPECT_EQ(a.top1_confidence[p], b.top1_confidence[p]);
        } else {
          EXPECT_EQ(b.token[p], -1);
          EXPECT_TRUE(std::isnan(b.confidence[p]));
        }
      }
    }
  }
}

TEST_P(EveryStrategy, ReplayReproducesTheRun) {
  const BlockDiffusionModel model = tiny_model(22);
  const DecodeOptions options = options_with(GetParam());
  PassLog first;
  std::vector<DecodeRequest> requests{tiny_request(0, 6, 13), tiny_request(1, 17, 5)};
  const auto recorded = decode_exact(model, options, requests, &first);
  for (DecodeRequest& request : requests) {
    request.replayed = true;
    request.replay = first.steps_of(request.sequence, kTinyBlock);
    check_request(request, options, model.config());
  }
  PassLog second;
  // Another model decides nothing under replay.
  const auto replayed = decode_exact(tiny_model(23), options, requests, &second);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(replayed[i].generated, recorded[i].generated);
    EXPECT_EQ(replayed[i].denoising_steps, recorded[i].denoising_steps);
    EXPECT_EQ(replayed[i].reason, FinishReason::replayed);
  }
  ASSERT_EQ(first.passes.size(), second.passes.size());
  for (size_t i = 0; i < first.passes.size(); ++i) {
    const auto& a = first.passes[i].context.sequences;
    const auto& b = second.passes[i].context.sequences;
    ASSERT_EQ(a.size(), b.size());
    for (size_t s = 0; s < a.size(); ++s) {
      EXPECT_EQ(a[s].kind, b[s].kind);
      EXPECT_EQ(a[s].masked, b[s].masked);
      EXPECT_EQ(a[s].changed, b[s].changed);
    }
  }
}

TEST_P(EveryStrategy, FlashBlockWithTauOneOrWithoutHeadsEqualsExact) {
  const BlockDiffusionModel model = tiny_model(24);
  const DecodeOptions options = options_with(GetParam());
  const std::vector<DecodeRequest> requests{tiny_request(0, 9, 14), tiny_request(1, 22, 7)};
  const auto exact = decode_exact(model, options, requests);
  const ReuseMasks nobody{{}, {HeadMatrix<bool>(2, std::vector<bool>(4, false))}};
  // With tau 1 only a step after one that changed nothing reuses: its pair is the exact one.
  for (auto& policy :
       {make_flashblock_policy({2, 4, {1}, {}}), make_flashblock_policy({2, 4, {100}, nobody})}) {
    const auto got = decode_all(model, *policy, options, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(got[i].generated, exact[i].generated);
    }
  }
}

/// The tokens that each denoising step of one sequence took.
std::vector<size_t> taken_by_step(const PassLog& log) {
  std::vector<size_t> counts;
  for (const ReplayStep& step : log.steps_of(0, kTinyBlock)) counts.push_back(step.tokens.size());
  return counts;
}

TEST(DecoderQuota, LinearTakesDreamsCountsInEveryBlock) {
  DecodeOptions options = options_with("low_confidence_static");
  options.unmasking.quota = Quota::kLinear;
  PassLog log;
  const auto got = decode_exact(tiny_model(26), options, {tiny_request(0, 8, 8)}, &log)[0];
  // 4 masks: int(.999), int(4 * 1/3), int(3 * 1/2), the rest.
  EXPECT_EQ(taken_by_step(log), (std::vector<size_t>{0, 1, 1, 2, 0, 1, 1, 2}));
  EXPECT_EQ(got.masks_left, 0);
}

TEST(DecoderCarry, GoesOnBehindTheLastStepUntilWhatWasCarriedIsChosen) {
  for (const std::string cache : {"commit", "blockd"}) {
    DecodeOptions options = options_with("threshold");
    options.cache.cache = cache;
    options.unmasking.quota = Quota::kCarry;
    options.unmasking.denoising_steps = 2;
    options.unmasking.threshold = 1.0;  // nothing is sure: one position a step, the rest is carried
    PassLog log;
    const std::vector<DecodeRequest> batch{tiny_request(0, 8, 8), tiny_request(1, 6, 6)};
    auto got = decode_exact(tiny_model(27), options, {batch[0]}, &log)[0];
    EXPECT_EQ(taken_by_step(log), (std::vector<size_t>{1, 1, 1, 1, 1, 1, 1, 1}));
    EXPECT_EQ(got.masks_left, 0);
    // The second prompt's first block begins with two prompt tokens, which count as chosen.
    const auto both = decode_exact(tiny_model(27), options, batch);
    EXPECT_EQ(both[0].generated, got.generated);
    EXPECT_EQ(both[1].masks_left, 0);
    options.unmasking.threshold = 0.0;
    PassLog fast;
    decode_exact(tiny_model(27), options, {batch[0]}, &fast);
    EXPECT_EQ(taken_by_step(fast), (std::vector<size_t>{2, 2, 2, 2})) << "two are due a step";
  }
}

TEST(DecoderDensity, CountsWhatIsDecidedInTheWholeAnswer) {
  // All predictions are equally likely: the density alone ranks, and it is largest next to the
  // decided blocks and the prompt.
  DecodeOptions options = options_with("low_confidence_static");
  options.unmasking.density_sigma = 2.0;
  PassLog log;
  decode_exact(indifferent_model(), options, {tiny_request(0, 6, 10)}, &log);
  int64_t next = 6;
  for (const ReplayStep& step : log.steps_of(0, kTinyBlock)) {
    EXPECT_EQ(step.positions, std::vector<int64_t>{next});
    ++next;
  }
  EXPECT_EQ(next, 16);
}

TEST(DecoderMasks, AMaskAsPredictionStaysMaskedAndIsReported) {
  // All logits are equal: the argmax is id 0. Making 0 the mask id makes every prediction a mask.
  const BlockDiffusionModel model = indifferent_model();
  DecodeOptions options = tiny_options();
  options.mask_token_id = 0;
  DecodeRequest request = tiny_request(0, 6, 9);
  for (int64_t& token : request.prompt) token = token % 30 + 1;
  for (const std::string strategy : {"low_confidence_static", "threshold"}) {
    options.unmasking.strategy = strategy;
    PassLog log;
    const DecodeOutcome got = decode_exact(model, options, {request}, &log)[0];
    EXPECT_EQ(got.masks_left, 10);
    EXPECT_EQ(got.reason, FinishReason::length);
    EXPECT_EQ(got.denoising_steps, 3 * kTinyBlock);  // every block uses all its steps
    int64_t commits = 0;
    for (const PassLog::Entry& pass : log.passes) {
      const SequencePass& sequence = pass.context.sequences[0];
      if (sequence.kind == PassKind::denoise) {
        EXPECT_TRUE(pass.decisions[0].transferred.empty());
      } else if (sequence.kind == PassKind::commit) {
        EXPECT_EQ(sequence.masks_left, sequence.block == 1 ? 2 : 4);
        ++commits;
      }
    }
    EXPECT_EQ(commits, 3);
  }
}

TEST(DecoderRequests, AreRefusedWithTheirReason) {
  const ModelConfig config = tiny_config();
  const DecodeOptions options = tiny_options();
  const auto refusal = [&](auto change) -> std::string {
    DecodeRequest request = tiny_request(0, 6, 8);
    change(request);
    try {
      check_request(request, options, config);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  using R = DecodeRequest;
  EXPECT_EQ(refusal([](R&) {}), "accepted");
  EXPECT_THAT(refusal([](R& r) { r.prompt.clear(); }), HasSubstr("empty"));
  EXPECT_THAT(refusal([](R& r) { r.prompt[2] = kTinyVocab; }), HasSubstr("token 2"));
  EXPECT_THAT(refusal([](R& r) { r.prompt[2] = -1; }), HasSubstr("token 2"));
  EXPECT_THAT(refusal([](R& r) { r.prompt[4] = kTinyMask; }), HasSubstr("mask"));
  EXPECT_THAT(refusal([](R& r) { r.gen_length = 0; }), HasSubstr("gen length"));
  // 6 + 250 = 256 positions is what the model has; one more opens another block.
  EXPECT_EQ(refusal([](R& r) { r.gen_length = 250; }), "accepted");
  EXPECT_THAT(refusal([](R& r) { r.gen_length = 251; }), HasSubstr("max_position_embeddings"));
}

TEST(DecoderReplay, IsRefusedWhenItDoesNotFitTheRequest) {
  const ModelConfig config = tiny_config();
  const auto accepted = [&](std::vector<ReplayStep> steps) {
    DecodeRequest request = tiny_request(0, 6, 10);
    request.replayed = true;
    request.replay = std::move(steps);
    try {
      check_request(request, tiny_options(), config);
    } catch (const Error&) {
      return false;
    }
    return true;
  };
  EXPECT_TRUE(accepted({{1, 1, {6}, {3}, {.5F}}, {2, 1, {9, 8}, {3, 4}, {.5F, .5F}}}));
  EXPECT_FALSE(accepted({{1, 1, {5}, {3}, {.5F}}})) << "a prompt position";
  EXPECT_FALSE(accepted({{1, 1, {8}, {3}, {.5F}}})) << "a position of another block";
  EXPECT_FALSE(accepted({{1, 1, {6, 6}, {3, 4}, {.5F, .5F}}})) << "decided twice in a step";
  EXPECT_FALSE(accepted({{1, 1, {6}, {3}, {.5F}}, {1, 2, {6}, {3}, {.5F}}})) << "the same token";
  EXPECT_FALSE(accepted({{1, 1, {6}, {3}, {.5F}}, {3, 1, {12}, {4}, {.5F}}})) << "a block left out";
  EXPECT_FALSE(accepted({{4, 1, {16}, {3}, {.5F}}})) << "behind the end";
  EXPECT_FALSE(accepted({{2, 1, {8}, {3}, {.5F}}})) << "the first block left out";
  EXPECT_FALSE(accepted({{1, 1, {6}, {kTinyVocab}, {.5F}}})) << "no token of this model";
  EXPECT_FALSE(accepted({{1, 1, {6}, {-4}, {.5F}}})) << "no token at all";
}

TEST(DecoderReplay, TakesEditsInsertionsAndDeletionsOfTheBlockAlone) {
  const ModelConfig config = tiny_config();
  const auto refusal = [&](std::vector<ReplayStep> steps) {
    DecodeRequest request = tiny_request(0, 6, 10);
    request.replayed = true;
    request.replay = std::move(steps);
    try {
      check_request(request, tiny_options(), config);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const ReplayStep first{1, 1, {6, 7}, {3, 4}, {.5F, .5F}};
  EXPECT_EQ(refusal({first, {1, 2, {6}, {5}, {.5F}}}), "accepted");
  EXPECT_EQ(refusal({first, {1, 2, {6}, {kTinyMask}, {.5F}}}), "accepted");
  EXPECT_THAT(refusal({{1, 1, {6}, {kTinyMask}, {.5F}}}), HasSubstr("no token to take back"));
  EXPECT_EQ(refusal({first, {1, 2, {}, {}, {}, {8}, {6}}}), "accepted");
  EXPECT_EQ(refusal({first, {1, 2, {}, {}, {}, {6}, {8}}}), "accepted");
  EXPECT_THAT(refusal({first, {1, 2, {}, {}, {}, {6}, {}}}), HasSubstr("as many positions"));
  EXPECT_THAT(refusal({first, {1, 2, {}, {}, {}, {5}, {6}}}), HasSubstr("position 5"));
  EXPECT_THAT(refusal({first, {1, 2, {}, {}, {}, {6}, {9}}}), HasSubstr("position 9"));
  EXPECT_THAT(refusal({first, {1, 2, {}, {}, {}, {6, 7}, {8, 8}}}), HasSubstr("deleted twice"));
}

TEST(DecoderOptionsCheck, RefusesIdsOutsideTheVocabularyAndTheMaskAsStop) {
  const ModelConfig config = tiny_config();
  DecodeOptions options = tiny_options();
  EXPECT_NO_THROW(check_decode_options(options, config));
  options.stop_ids = {kTinyMask};
  EXPECT_THROW(check_decode_options(options, config), UsageError);
  options.stop_ids = {kTinyVocab};
  EXPECT_THROW(check_decode_options(options, config), UsageError);
  options.stop_ids = {};
  options.mask_token_id = kTinyVocab;
  EXPECT_THROW(check_decode_options(options, config), UsageError);
  options.mask_token_id = -1;
  EXPECT_THROW(check_decode_options(options, config), UsageError) << "block length 4";
}

}  // namespace
}  // namespace blockscope
