// What an observer sees of steps that are graphs (shown_pass.h), on the emulated cuda:0 with
// emulated kernels: the values of steps that are launched one by one, for as long as it keeps them.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/probe/decode/graph_runs.h"

namespace blockscope {
namespace {

using namespace testing;

/// Keeps every tensor that it is shown, as a recorder does that works behind decoding.
struct Keeper : DecodeObserver {
  std::vector<at::Tensor> shown;
  int64_t spreads = 0;
  int64_t last_asking_step = 1000;

  std::vector<std::vector<int64_t>> key_ranges(const PassContext& context,
                                               int64_t layer) const override {
    std::vector<std::vector<int64_t>> ends;
    for (const SequencePass& pass : context.sequences) {
      if (pass.step > last_asking_step) return {};
      ends.push_back({std::min(layer + 1, pass.context_length), pass.context_length});
    }
    return ends;
  }
  void keep(const AttentionParts& parts) {
    shown.insert(shown.end(), {parts.out, parts.external, parts.lse_external, parts.internal,
                               parts.lse_internal});
  }
  void on_hidden(const PassContext& /*context*/, int64_t /*layer*/,
                 const at::Tensor& hidden) override {
    shown.push_back(hidden);
  }
  void on_staleness(const PassContext& /*context*/, const Staleness& of_layers) override {
    shown.insert(shown.end(), {of_layers.key, of_layers.value, of_layers.attention});
  }
  void on_attention(const AttentionView& view) override {
    shown.push_back(view.input.q);
    keep(view.used);
    if (view.exact != nullptr && view.exact != &view.used) keep(*view.exact);
    if (view.spread == nullptr) return;
    ++spreads;
    // Heads that reuse would have none, but the exact weights are known.
    if (view.exact != nullptr) {
      EXPECT_FALSE(view.spread->range.cpu().isnan().any().item<bool>());
    }
    shown.insert(shown.end(), {view.spread->entropy, view.spread->largest, view.spread->range,
                               view.spread->key, view.spread->offset});
  }
};

/// What a run shows with graphs is what it shows without them, after the run too. -> the launches
/// of graphs.
int64_t graphs_that_show(const ModelConfig& config, const MakePolicy& make, DecodeOptions options,
                         const std::vector<DecodeRequest>& requests,
                         int64_t last_asking_step = 1000) {
  const BlockDiffusionModel device = packed_on(at::kCUDA, tiny_model(7, config));
  Keeper single, repeated;
  single.last_asking_step = repeated.last_asking_step = last_asking_step;
  options.graphs = false;
  const auto want = tokens_of(device, make, options, requests, &single);
  options.graphs = true;
  emulated_cuda::reset_counters();
  EXPECT_EQ(tokens_of(device, make, options, requests, &repeated), want);
  const int64_t graphs = emulated_cuda::counters().graphs;
  EXPECT_EQ(repeated.spreads, single.spreads);
  EXPECT_EQ(repeated.shown.size(), single.shown.size());
  for (size_t i = 0; i < std::min(single.shown.size(), repeated.shown.size()); ++i) {
    const at::Tensor now = repeated.shown[i].cpu();
    const at::Tensor before = single.shown[i].cpu();
    EXPECT_TRUE(now.sizes() == before.sizes() && at::allclose(now, before, 0, 0, true))
        << "tensor " << i << " of " << single.shown.size();
  }
  return graphs;
}

/// 9 prompt tokens and 16 positions: three blocks of 7, 8 and 8 masks.
std::vector<DecodeRequest> short_request() { return {tiny_request(0, 9, 16)}; }

TEST(ShownGraphs, ShowWhatEachLaunchComputed) {
  DecodeOptions options = options_of_eight();
  EXPECT_EQ(graphs_that_show(tiny_config(), make_exact_policy, options, short_request()),
            6 + 7 + 7);
  EXPECT_GT(graphs_that_show(tiny_config(), make_exact_policy, options, two_requests()), 10);
  const auto mage = [] { return make_mage_policy(selection(5, true)); };
  const auto reusing = [] { return make_flashblock_policy(flashblock(9, true)); };
  for (const bool shadow : {false, true}) {
    options.shadow = shadow;
    EXPECT_GT(graphs_that_show(tiny_config(), mage, options, short_request()), 5);
    EXPECT_GT(graphs_that_show(tiny_config(), reusing, options, short_request()), 5);
  }
}

TEST(ShownGraphs, ShowThePartOfABlockThatTheyCompute) {
  DecodeOptions options = options_of_eight();
  options.sub_block_length = 4;
  options.cache.cache = "block";
  EXPECT_GT(graphs_that_show(tiny_config(), make_exact_policy, options, short_request()), 1);
}

TEST(ShownGraphs, EndWhereTheObserverAsksSomethingElse) {
  const int64_t graphs =
      graphs_that_show(tiny_config(), make_exact_policy, options_of_eight(), short_request(), 4);
  EXPECT_EQ(graphs, (3 + 2) + 2 * (3 + 3));  // without the first step of either kind
}

TEST(ShownGraphs, DecodeCanvases) {
  ModelConfig config = tiny_config();
  config.attention_bidirectional = true;
  DecodeOptions options = options_of_eight();
  options.bidirectional = true;
  const auto flash = [] { return make_flashblock_policy(flashblock(9, false)); };
  for (const std::string cache : {"none", "prefix", "dual"}) {
    SCOPED_TRACE(cache);
    options.cache.cache = cache;
    config.logit_shift = 0;
    EXPECT_GT(graphs_of_equal_run(config, make_exact_policy, options, short_request()), 8);
    config.logit_shift = 1;
    EXPECT_GT(graphs_that_show(config, make_exact_policy, options, short_request()), 8);
  }
  EXPECT_GT(graphs_that_show(config, flash, options, short_request()), 5);
  options.shadow = true;  // between two refreshes lie steps that launch one graph
  const auto refreshing = [] { return make_flashblock_policy(flashblock(4, false)); };
  EXPECT_GT(graphs_that_show(config, refreshing, options, short_request()), 2);
  options.shadow = false;
  for (const std::string cache : {"dllm-cache", "d2cache"}) {
    options.cache.cache = cache;
    EXPECT_EQ(graphs_of_equal_run(config, make_exact_policy, options, short_request()), 0);
  }
}

TEST(ShownGraphs, ShowNothingToWhoDoesNotLookInside) {
  struct Counter : DecodeObserver {
    bool looks_inside(const PassContext& /*context*/) const override { return false; }
    void on_attention(const AttentionView& /*view*/) override { ++layers; }
    void on_pass(const PassResult& /*result*/) override { ++passes; }
    int64_t layers = 0, passes = 0;
  };
  const BlockDiffusionModel device = moved_to(at::kCUDA, tiny_model(7));
  Counter counting;
  emulated_cuda::reset_counters();
  tokens_of(device, make_exact_policy, options_of_eight(), {tiny_request(0, 17, 32)}, &counting);
  EXPECT_GT(emulated_cuda::counters().graphs, 20);
  EXPECT_EQ(counting.layers, 0);
  EXPECT_GT(counting.passes, 32);
}

}  // namespace
}  // namespace blockscope
