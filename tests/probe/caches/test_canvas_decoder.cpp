// The loop of bidirectional models: what it refuses, replays and shows. What it computes is judged
// by tests/probe/parity/check_canvas.py.
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "decode_record/base/error.h"
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

DecodeOptions canvas_options(std::string cache) {
  DecodeOptions options = tiny_options();
  options.bidirectional = true;
  options.cache.cache = cache;
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
  for (const auto& [cache, later] : {std::pair{"none", std::vector<double>{14, 14}},
                                     std::pair{"prefix", std::vector<double>{8, 4}},
                                     std::pair{"dual", std::vector<double>{4, 4}}}) {
    CanvasLog log;
    const DecodeOutcome outcome = decode(canvas_options(cache), request, 0, &log);
    EXPECT_EQ(outcome.reason, FinishReason::length);
    EXPECT_EQ(static_cast<int64_t>(log.transferred) + outcome.masks_left, 8);
    for (size_t pass = 0; pass < log.rows.size(); ++pass) {
      const size_t block = log.starts[pass] == 6 ? 0 : 1;
      const bool first = pass == 0 || log.starts[pass - 1] != log.starts[pass];
      EXPECT_EQ(log.rows[pass], first ? 14 : later[block]) << cache << pass;
      EXPECT_EQ(log.contexts[pass], 10);
    }
  }
}

/// What every pass computed, and how stale its cache was.
class WorkLog : public DecodeObserver {
 public:
  void on_staleness(const PassContext& /*context*/, const Staleness& of_layers) override {
    stale.push_back(of_layers);
  }
  void on_pass(const PassResult& result) override {
    work.push_back(result.work);
    start.push_back(result.context.sequences.front().block_start);
  }
  std::vector<std::vector<LayerWork>> work;
  std::vector<Staleness> stale;
  std::vector<int64_t> start;
};

TEST(CanvasDecoder, PassesTellWhatEveryLayerComputed) {
  WorkLog log;
  decode(canvas_options("dual"), tiny_request(0, 6, 8), 0, &log);
  for (size_t pass = 0; pass < log.work.size(); ++pass) {
    const bool first = pass == 0 || log.start[pass] != log.start[pass - 1];
    std::vector<int64_t> expected;
    for (int64_t p = first ? 0 : log.start[pass]; p < (first ? 14 : log.start[pass] + 4); ++p) {
      expected.push_back(p);
    }
    ASSERT_EQ(log.work[pass].size(), 2U);
    for (const LayerWork& layer : log.work[pass]) {
      EXPECT_EQ(layer.queries, expected);
      EXPECT_EQ(layer.keys, expected);
      EXPECT_EQ(layer.values, expected);
    }
  }
  EXPECT_TRUE(log.stale.empty());  // not requested
}

TEST(CanvasDecoder, StalenessIsThatOfKeptEntriesAndComputedRows) {
  for (const std::string cache : {"none", "prefix", "dual", "dllm-cache", "d2cache"}) {
    SCOPED_TRACE(cache);
    DecodeOptions options = canvas_options(cache);
    const DecodeRequest request = tiny_request(4, 6, 8);
    const std::vector<int64_t> plain = decode(options, request, 0).generated;
    options.shadow = true;
    WorkLog log;
    EXPECT_EQ(decode(options, request, 0, &log).generated, plain);
    ASSERT_EQ(log.stale.size(), log.work.size());
    int64_t stale = 0;
    for (size_t pass = 0; pass < log.stale.size(); ++pass) {
      for (size_t layer = 0; layer < 2; ++layer) {
        const auto of_layer = [&](const at::Tensor& cosine) {
          return cosine[static_cast<int64_t>(layer)].item<float>();
        };
        const float key = of_layer(log.stale[pass].key);
        const bool all = log.work[pass][layer].keys.size() == 14;
        EXPECT_EQ(std::isnan(key), all);
        if (cache == "none") {
          EXPECT_NEAR(of_layer(log.stale[pass].attention), 1.0F, 1e-5F);
        }
        if (!all) {
          EXPECT_LE(key, 1.0F + 1e-5F);
        }
        stale += !std::isnan(key) && key < 0.9999F;
      }
    }
    EXPECT_EQ(stale > 0, cache != "none");
  }
}

TEST(CanvasDecoder, RowsThatAPassLeavesOutAreNaNToObservers) {
  class Views : public DecodeObserver {
   public:
    void on_attention(const AttentionView& view) override {
      const at::Tensor missing = view.used.lse_internal[0][0].isnan();
      const int64_t computed = view.rows == nullptr ? 4 : view.rows->numel();
      EXPECT_EQ(missing.sum().item<int64_t>(), 4 - computed);
      EXPECT_EQ(view.input.q[0][0].isnan().any(-1).sum().item<int64_t>(), 4 - computed);
      partial += computed < 4;
    }
    void on_logits(const PassContext& /*context*/, const std::vector<int64_t>& /*slots*/,
                   const at::Tensor& logits) override {
      unpredicted += logits[0].isnan().any(-1).sum().item<int64_t>();
    }
    int64_t partial = 0, unpredicted = 0;
  };
  for (const std::string cache : {"dllm-cache", "d2cache"}) {
    Views views;
    decode(canvas_options(cache), tiny_request(5, 6, 8), 0, &views);
    EXPECT_GT(views.partial, 0);
    EXPECT_EQ(views.unpredicted > 0, cache == "d2cache");
  }
}

TEST(CanvasDecoder, ObserversNeverSteer) {
  for (const std::string cache : {"none", "prefix", "dual", "dllm-cache", "d2cache"}) {
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
  DecodeOptions options = canvas_options("dual");
  options.unmasking.strategy = "threshold";
  options.unmasking.threshold = 0.0;  // everything would be taken
  decode(options, tiny_request(2, 6, 8), 1, &decisions);
  ASSERT_EQ(decisions.first.size(), 2U);
  for (const auto& positions : decisions.first) EXPECT_LE(positions.size(), 1U);
}

TEST(CanvasDecoder, ReplayTakesTheRecordedTokens) {
  DecodeRequest request = tiny_request(3, 6, 8);
  request.replayed = true;
  request.replay = {{0, 1, {7, 9}, {1, 2}, {0.5F, 0.5F}}, {1, 1, {13}, {3}, {0.5F}}};
  const DecodeOutcome outcome = decode(canvas_options("dual"), request, 0);
  EXPECT_EQ(outcome.reason, FinishReason::replayed);
  const int64_t m = kTinyMask;
  EXPECT_EQ(outcome.generated, (std::vector<int64_t>{m, 1, m, 2, m, m, m, 3}));
}

TEST(CanvasDecoder, WhatDoesNotFitIsRefused) {
  const ModelConfig config = canvas_config(0);
  DecodeOptions options = canvas_options("commit");
  EXPECT_THROW(check_decode_options(options, config), UsageError);
  options = tiny_options();
  options.cache.cache = "dual";
  EXPECT_THROW(check_decode_options(options, tiny_config()), UsageError);
  options = canvas_options("none");
  EXPECT_NO_THROW(check_request(tiny_request(0, 6, 8), options, config));
  EXPECT_THROW(check_request(tiny_request(0, 6, 7), options, config), PromptError);
  DecodeRequest request = tiny_request(0, 6, 8);
  request.replayed = true;
  request.replay = {{1, 1, {12}, {3}, {0.5F}}};  // block 1 before block 0
  EXPECT_THROW(check_request(request, options, config), PromptError);
}

}  // namespace
}  // namespace blockscope
