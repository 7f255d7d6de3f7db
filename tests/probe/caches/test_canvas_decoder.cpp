// The loop of bidirectional models: what it refuses, replays and shows. What it computes is judged
// by tests/probe/parity/check_canvas.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "decode_record/error.h"
#include "probe/decode/decoder.h"
#include "tests/support/tiny_model.h"

namespace blockscope {
namespace {

using namespace blockscope::testing;

ModelConfig canvas_config(int64_t shift) {
  ModelConfig config = tiny_config();
  config.attention_bidirectional = true;
  config.logit_shift = shift;
  return config;
}

DecodeOptions canvas_options(CacheKind cache) {
  DecodeOptions options = tiny_options();
  options.bidirectional = true;
  options.cache.kind = cache;
  options.cache.answer_interval = 3;
  options.cache.current_k = 3;
  return options;
}

/// Rows, blocks and starts of every pass.
class CanvasLog : public DecodeObserver {
 public:
  void on_pass(const PassResult& result) override {
    const SequencePass& pass = result.context.sequences.front();
    rows.push_back(result.computed_rows);
    starts.push_back(pass.block_start);
    contexts.push_back(pass.context_length);
    transferred += result.decisions.front().transferred.size();
  }
  std::vector<double> rows;
  std::vector<int64_t> starts, contexts;
  size_t transferred = 0;
};

DecodeOutcome decode(const DecodeOptions& options, const DecodeRequest& request, int64_t shift,
                     DecodeObserver* observer = nullptr) {
  const BlockDiffusionModel model = tiny_model(3, canvas_config(shift));
  const auto policy = make_exact_policy();
  int64_t next_pass = 0;
  DecodeCallbacks callbacks;
  callbacks.observer = observer;
  return decode_batch(model, *policy, options, {request}, next_pass, callbacks).front();
}

TEST(CanvasDecoder, RowsAreThoseOfTheCache) {
  const DecodeRequest request = tiny_request(0, 6, 8);
  for (const auto& [cache, later] : {std::pair{CacheKind::kNone, std::vector<double>{14, 14}},
                                     std::pair{CacheKind::kPrefix, std::vector<double>{8, 4}},
                                     std::pair{CacheKind::kDual, std::vector<double>{4, 4}}}) {
    CanvasLog log;
    const DecodeOutcome outcome = decode(canvas_options(cache), request, 0, &log);
    EXPECT_EQ(outcome.reason, FinishReason::length);
    EXPECT_EQ(static_cast<int64_t>(log.transferred) + outcome.masks_left, 8);
    for (size_t pass = 0; pass < log.rows.size(); ++pass) {
      const size_t block = log.starts[pass] == 6 ? 0 : 1;
      const bool first = pass == 0 || log.starts[pass - 1] != log.starts[pass];
      EXPECT_EQ(log.rows[pass], first ? 14 : later[block]) << cache_name(cache) << pass;
      EXPECT_EQ(log.contexts[pass], 10);
    }
  }
}

TEST(CanvasDecoder, ObserversNeverSteer) {
  for (const CacheKind cache :
       {CacheKind::kNone, CacheKind::kPrefix, CacheKind::kDual, CacheKind::kDllm, CacheKind::kD2}) {
    for (const int64_t shift : {0, 1}) {
      CanvasLog log;
      const DecodeRequest request = tiny_request(1, 5, 8);
      EXPECT_EQ(decode(canvas_options(cache), request, shift).generated,
                decode(canvas_options(cache), request, shift, &log).generated);
    }
  }
}

TEST(CanvasDecoder, AShiftedModelsFirstPassDecidesTheFirstPositionAlone) {
  class Decisions : public DecodeObserver {
   public:
    void on_pass(const PassResult& result) override {
      if (result.context.sequences.front().step == 1) {
        first.push_back(result.decisions.front().transferred);
      }
    }
    std::vector<std::vector<int64_t>> first;
  } decisions;
  DecodeOptions options = canvas_options(CacheKind::kDual);
  options.unmasking.strategy = Strategy::kThreshold;
  options.unmasking.threshold = 0.0;  // everything would be taken
  decode(options, tiny_request(2, 6, 8), 1, &decisions);
  ASSERT_EQ(decisions.first.size(), 2U);
  for (const auto& positions : decisions.first) EXPECT_LE(positions.size(), 1U);
}

TEST(CanvasDecoder, ReplayTakesTheRecordedTokens) {
  DecodeRequest request = tiny_request(3, 6, 8);
  request.replayed = true;
  request.replay = {{0, 1, {7, 9}, {1, 2}, {0.5F, 0.5F}}, {1, 1, {13}, {3}, {0.5F}}};
  const DecodeOutcome outcome = decode(canvas_options(CacheKind::kDual), request, 0);
  EXPECT_EQ(outcome.reason, FinishReason::replayed);
  const int64_t m = kTinyMask;
  EXPECT_EQ(outcome.generated, (std::vector<int64_t>{m, 1, m, 2, m, m, m, 3}));
}

TEST(CanvasDecoder, WhatDoesNotFitIsRefused) {
  const ModelConfig config = canvas_config(0);
  DecodeOptions options = canvas_options(CacheKind::kCommit);
  EXPECT_THROW(check_decode_options(options, config), UsageError);
  options = tiny_options();
  options.cache.kind = CacheKind::kDual;
  EXPECT_THROW(check_decode_options(options, tiny_config()), UsageError);
  options = canvas_options(CacheKind::kNone);
  EXPECT_NO_THROW(check_request(tiny_request(0, 6, 8), options, config));
  EXPECT_THROW(check_request(tiny_request(0, 6, 7), options, config), PromptError);
  DecodeRequest request = tiny_request(0, 6, 8);
  request.replayed = true;
  request.replay = {{1, 1, {12}, {3}, {0.5F}}};  // block 1 before block 0
  EXPECT_THROW(check_request(request, options, config), PromptError);
}

}  // namespace
}  // namespace blockscope
