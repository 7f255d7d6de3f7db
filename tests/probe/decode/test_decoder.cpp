// The decoding loop on a tiny random model, against decoding without a cache, and against itself in
// other batches, chunks and modes.
#include "probe/decode/decoder.h"
#include "probe/policies/exact_policy.h"
#include "probe/policies/flashblock_policy.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "decode_record/base/error.h"
#include "tests/support/recompute.h"
#include "tests/support/tiny_model.h"

namespace blockscope {
namespace {

using namespace testing;  // NOLINT: the helpers of this folder

int64_t count_masks(const std::vector<int64_t>& tokens) {
  return std::count(tokens.begin(), tokens.end(), kTinyMask);
}

TEST(Decoder, EqualsDecodingWithoutACacheForEveryPlaceOfThePromptsEnd) {
  for (const uint64_t seed : {1U, 2U}) {
    const BlockDiffusionModel model = tiny_model(seed);
    for (const int64_t length : {1, 3, 4, 5, 8, 11, 12}) {
      SCOPED_TRACE(::testing::Message() << "model " << seed << ", prompt of " << length);
      const DecodeRequest request = tiny_request(0, length, 9);
      const DecodeOutcome got = decode_exact(model, tiny_options(), {request})[0];
      EXPECT_EQ(got.generated, recompute_blocks(model, request.prompt, 9, kTinyBlock, kTinyMask));
      EXPECT_EQ(got.masks_left, count_masks(got.generated));
      EXPECT_EQ(got.reason, FinishReason::length);
      EXPECT_EQ((length + static_cast<int64_t>(got.generated.size())) % kTinyBlock, 0);
      EXPECT_GE(static_cast<int64_t>(got.generated.size()), 9);
      EXPECT_LT(static_cast<int64_t>(got.generated.size()), 9 + kTinyBlock);
    }
  }
}

TEST(Decoder, AutoregressiveEqualsTheArgmaxAfterTheWholeText) {
  const BlockDiffusionModel model = tiny_model(3);
  DecodeOptions options = tiny_options();
  options.mask_token_id = -1;
  options.unmasking.block_length = 1;
  options.unmasking.denoising_steps = 1;
  for (const int64_t length : {1, 2, 9}) {
    SCOPED_TRACE(length);
    const DecodeRequest request = tiny_request(0, length, 12);
    const DecodeOutcome got = decode_exact(model, options, {request})[0];
    EXPECT_EQ(got.generated, recompute_autoregressive(model, request.prompt, 12));
    EXPECT_EQ(got.denoising_steps, 12);
    EXPECT_EQ(got.reason, FinishReason::length);
  }
}

TEST(Decoder, ABatchOfUnequalPromptsEqualsTheSingleRuns) {
  const BlockDiffusionModel model = tiny_model(4);
  const std::vector<DecodeRequest> requests{tiny_request(0, 3, 4), tiny_request(1, 21, 20),
                                            tiny_request(2, 8, 1), tiny_request(3, 13, 11),
                                            tiny_request(4, 1, 30)};
  for (const bool sampled : {false, true}) {
    SCOPED_TRACE(sampled);
    DecodeOptions options = tiny_options();
    options.sampling.temperature = sampled ? 1.0 : 0.0;
    const auto together = decode_exact(model, options, requests);
    ASSERT_EQ(together.size(), requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(i);
      const DecodeOutcome alone = decode_exact(model, options, {requests[i]})[0];
      EXPECT_EQ(together[i].sequence, requests[i].sequence);
      EXPECT_EQ(together[i].generated, alone.generated);
      EXPECT_EQ(together[i].denoising_steps, alone.denoising_steps);
      EXPECT_EQ(together[i].reason, alone.reason);
    }
  }
}

/// The base that dynamic NTK scaling gives to sequences of `length` positions (as transformers
/// computes it), written down a second time.
double dynamic_theta(const ModelConfig& config, double factor, double length) {
  const double original = static_cast<double>(config.max_position_embeddings);
  const double dim = static_cast<double>(config.head_dim);
  if (length <= original) return config.rope.theta;
  return config.rope.theta *
         std::pow(factor * length / original - (factor - 1.0), dim / (dim - 2.0));
}

TEST(Decoder, DynamicRopeIsScaledForTheLongestSequenceOfTheBatch) {
  ModelConfig dynamic = tiny_config();
  dynamic.max_position_embeddings = 16;
  dynamic.rope.type = RopeType::kDynamic;
  dynamic.rope.factor = 4.0;
  dynamic.rope.original_max_position_embeddings = dynamic.max_position_embeddings;
  const BlockDiffusionModel model = tiny_model(6, dynamic);
  // The last batch is short again: nothing may stay from the one before.
  const std::vector<std::vector<DecodeRequest>> batches{
      {tiny_request(0, 21, 20)},
      {tiny_request(1, 30, 9), tiny_request(2, 5, 8), tiny_request(3, 13, 50)},
      {tiny_request(4, 5, 8)}};
  for (const auto& batch : batches) {
    SCOPED_TRACE(batch.front().sequence);
    int64_t longest = 0;
    for (const DecodeRequest& request : batch) {
      check_request(request, tiny_options(), dynamic);
      const auto end = static_cast<int64_t>(request.prompt.size()) + request.gen_length;
      longest = std::max(longest, (end + kTinyBlock - 1) / kTinyBlock * kTinyBlock);
    }
    ModelConfig plain = tiny_config();
    plain.rope.theta = dynamic_theta(dynamic, 4.0, static_cast<double>(longest));
    const BlockDiffusionModel expected = tiny_model(6, plain);
    const auto got = decode_exact(model, tiny_options(), batch);
    for (size_t i = 0; i < batch.size(); ++i) {
      EXPECT_EQ(got[i].generated, recompute_blocks(expected, batch[i].prompt, batch[i].gen_length,
                                                   kTinyBlock, kTinyMask));
    }
  }
}

TEST(Decoder, DynamicRopeStretchesThePositionsByItsFactor) {
  ModelConfig config = tiny_config();
  config.max_position_embeddings = 16;
  EXPECT_THROW(check_request(tiny_request(0, 16, 1), tiny_options(), config), PromptError);
  config.rope.type = RopeType::kDynamic;
  config.rope.factor = 2.5;
  EXPECT_NO_THROW(check_request(tiny_request(0, 16, 24), tiny_options(), config));
  EXPECT_THROW(check_request(tiny_request(0, 16, 25), tiny_options(), config), PromptError);
}

TEST(Decoder, ABatchUnderFlashBlockEqualsTheSingleRuns) {
  const BlockDiffusionModel model = tiny_model(5);
  const std::vector<DecodeRequest> requests{tiny_request(0, 9, 3), tiny_request(1, 20, 17),
                                            tiny_request(2, 5, 9)};
  const ModelConfig& config = model.config();
  const auto flashblock = [&] {
    return make_flashblock_policy({config.num_layers, config.num_heads, {2}, {}});
  };
  const auto policy = flashblock();
  const auto together = decode_all(model, *policy, tiny_options(), requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto own = flashblock();
    EXPECT_EQ(together[i].generated,
              decode_all(model, *own, tiny_options(), {requests[i]})[0].generated);
  }
}

TEST(Decoder, PrefillChunksDoNotChangeTheTokens) {
  const BlockDiffusionModel model = tiny_model(6);
  const DecodeRequest request = tiny_request(0, 43, 12);
  DecodeOptions options = tiny_options();
  const auto whole = decode_exact(model, options, {request})[0].generated;
  for (const int64_t chunk : {1, 4, 7, 8, 40}) {
    options.prefill_chunk = chunk;
    PassLog log;
    EXPECT_EQ(decode_exact(model, options, {request}, &log)[0].generated, whole) << chunk;
    int64_t next = 0;
    for (const PassLog::Entry& pass : log.passes) {
      if (pass.context.sequences[0].kind != PassKind::prefill) continue;
      EXPECT_EQ(pass.start, next);
      EXPECT_EQ(pass.length % kTinyBlock, 0);
      EXPECT_LE(pass.length, std::max(chunk, kTinyBlock));
      next += pass.length;
    }
    EXPECT_EQ(next, 40);
  }
}

TEST(Decoder, APromptShorterThanABlockHasNoPrefill) {
  PassLog log;
  decode_exact(tiny_model(7), tiny_options(), {tiny_request(0, 3, 1)}, &log);
  const SequencePass& first = log.passes.front().context.sequences[0];
  EXPECT_EQ(first.kind, PassKind::denoise);
  EXPECT_EQ(first.context_length, 0);
  EXPECT_EQ(first.masked, (std::vector<bool>{false, false, false, true}));
}

TEST(Decoder, LeftOverPromptTokensStayAsTheyAre) {
  const BlockDiffusionModel model = tiny_model(8);
  PassLog log;
  decode_exact(model, tiny_options(), {tiny_request(0, 6, 8)}, &log);
  for (const PassLog::Entry& pass : log.passes) {
    const SequencePass& sequence = pass.context.sequences[0];
    if (sequence.kind != PassKind::denoise || sequence.block != 1) continue;
    EXPECT_FALSE(sequence.masked[0] || sequence.masked[1]);
    for (const int64_t p : pass.decisions[0].transferred) EXPECT_GE(p, 2);
  }
}

TEST(Decoder, StopsAfterTheBlockThatHoldsAStopIdAndKeepsItWhole) {
  const BlockDiffusionModel model = tiny_model(9);
  const DecodeRequest request = tiny_request(0, 9, 24);
  DecodeOptions options = tiny_options();
  const DecodeOutcome whole = decode_exact(model, options, {request})[0];
  // A token of the second generated block that does not occur before it.
  const int64_t rest = kTinyBlock - 9 % kTinyBlock;
  int64_t stop_at = -1;
  for (int64_t i = rest; i < rest + kTinyBlock && stop_at < 0; ++i) {
    const auto here = whole.generated.begin() + i;
    if (*here != kTinyMask && std::find(whole.generated.begin(), here, *here) == here) stop_at = i;
  }
  ASSERT_GE(stop_at, 0) << "choose another seed";
  options.stop_ids = {whole.generated[static_cast<size_t>(stop_at)]};
  const DecodeOutcome got = decode_exact(model, options, {request})[0];
  EXPECT_EQ(got.reason, FinishReason::stop);
  ASSERT_EQ(got.generated.size(), whole.generated.size());
  const int64_t decided = rest + kTinyBlock;
  EXPECT_TRUE(
      std::equal(got.generated.begin(), got.generated.begin() + decided, whole.generated.begin()));
  EXPECT_TRUE(std::all_of(got.generated.begin() + decided, got.generated.end(),
                          [](int64_t token) { return token == kTinyMask; }));
}

TEST(Decoder, AStopIdInThePromptDoesNotStop) {
  const BlockDiffusionModel model = tiny_model(10);
  DecodeRequest request = tiny_request(0, 6, 8);
  DecodeOptions options = tiny_options();
  const std::vector<int64_t> whole = decode_exact(model, options, {request})[0].generated;
  int64_t unused = 0;
  while (std::count(whole.begin(), whole.end(), unused) > 0) ++unused;
  options.stop_ids = {unused};
  request.prompt[5] = unused;  // in the block that is decoded first
  const DecodeOutcome got = decode_exact(model, options, {request})[0];
  if (std::count(got.generated.begin(), got.generated.end(), unused) == 0) {
    EXPECT_EQ(got.reason, FinishReason::length);
  }
  EXPECT_GT(got.denoising_steps, 2);
}

TEST(Decoder, TakesTheScheduledTokensWithFewerStepsThanPositions) {
  const BlockDiffusionModel model = tiny_model(11);
  DecodeOptions options = tiny_options();
  options.unmasking.denoising_steps = 3;  // 2, 1, 1
  PassLog log;
  decode_exact(model, options, {tiny_request(0, 4, 12)}, &log);
  int64_t blocks_checked = 0;
  std::vector<int64_t> counts;
  for (const PassLog::Entry& pass : log.passes) {
    const SequencePass& sequence = pass.context.sequences[0];
    if (sequence.kind == PassKind::commit) {
      EXPECT_LE(counts.size(), 3U);
      // Fewer than due only where the argmax was the mask.
      if (sequence.masks_left == 0) {
        EXPECT_EQ(counts, (std::vector<int64_t>{2, 1, 1}));
        ++blocks_checked;
      }
      counts.clear();
    } else if (sequence.kind == PassKind::denoise) {
      counts.push_back(static_cast<int64_t>(pass.decisions[0].transferred.size()));
    }
  }
  EXPECT_GT(blocks_checked, 0);
}

TEST(Decoder, CountsTheChangedInputsOfTheStepBefore) {
  const BlockDiffusionModel model = tiny_model(12);
  DecodeOptions options = tiny_options();
  options.unmasking.denoising_steps = 2;
  PassLog log;
  decode_exact(model, options, {tiny_request(0, 6, 12)}, &log);
  int64_t transferred = 0;
  for (const PassLog::Entry& pass : log.passes) {
    const SequencePass& sequence = pass.context.sequences[0];
    if (sequence.kind == PassKind::prefill) continue;
    EXPECT_EQ(sequence.changed, sequence.first_step() ? 0 : transferred);
    EXPECT_EQ(sequence.context_length, sequence.block * kTinyBlock);
    EXPECT_EQ(sequence.masks_left,
              std::count(sequence.masked.begin(), sequence.masked.end(), true));
    transferred = static_cast<int64_t>(pass.decisions[0].transferred.size());
  }
}

TEST(Decoder, StopsAtOnceWhenInterruptedAndSaysSo) {
  const BlockDiffusionModel model = tiny_model(13);
  const std::vector<DecodeRequest> requests{tiny_request(0, 9, 4), tiny_request(1, 9, 40)};
  const auto policy = make_exact_policy();
  for (const int64_t limit : {1, 3, 12}) {
    SCOPED_TRACE(limit);
    int64_t next_pass = 0;
    DecodeCallbacks callbacks;
    callbacks.interrupted = [&] { return next_pass >= limit; };
    std::vector<DecodeOutcome> told;
    callbacks.on_finished = [&](const DecodeOutcome& outcome) { told.push_back(outcome); };
    const auto outcomes =
        decode_batch(model, *policy, tiny_options(), requests, next_pass, callbacks);
    EXPECT_EQ(next_pass, limit);
    EXPECT_EQ(told.size(), 2U);
    EXPECT_EQ(outcomes[1].reason, FinishReason::interrupted);
    EXPECT_EQ(outcomes[0].reason, limit < 12 ? FinishReason::interrupted : FinishReason::length);
  }
}

}  // namespace
}  // namespace blockscope
