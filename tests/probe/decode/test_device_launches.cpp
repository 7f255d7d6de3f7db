// The launches of a decoding step on a GPU, counted on the emulated cuda:0 with emulated kernels:
// every operator that is not a view and every kernel costs the host a launch, however little it
// computes.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/support/emulated_cuda.h"
#include "tests/support/tiny_model.h"

namespace blockscope {
namespace {

using namespace testing;

BlockDiffusionModel on_cuda(const ModelConfig& config, at::ScalarType dtype) {
  return packed_on(at::kCUDA, tiny_model(1, config), dtype);
}

/// Of a pass: operators of torch, but views, and calls of our kernels.
struct Work {
  int64_t operators = 0;
  int64_t kernels = 0;
  int64_t graphs = 0;
};

/// Of the passes of a run, the last of them empty.
std::vector<Work> work_of_passes(const BlockDiffusionModel& model, const DecodeOptions& options,
                                 DecodeObserver* observer = nullptr) {
  std::vector<Work> passes;
  DecodeCallbacks callbacks;
  callbacks.observer = observer;
  callbacks.interrupted = [&] {
    const emulated_cuda::Counters done = emulated_cuda::counters();
    passes.push_back({done.operators - done.views, done.launches, done.graphs});
    emulated_cuda::reset_counters();
    return false;
  };
  int64_t next_pass = 0;
  emulated_cuda::reset_counters();
  const auto policy = make_exact_policy();
  decode_batch(model, *policy, options, {tiny_request(0, 8, 12)}, next_pass, callbacks);
  return passes;
}

/// Of one run under the exact policy.
std::vector<int64_t> generated(const BlockDiffusionModel& model,
                               const DecodeOptions& options = tiny_options()) {
  int64_t next_pass = 0;
  const auto policy = make_exact_policy();
  return decode_batch(model, *policy, options, {tiny_request(0, 8, 12)}, next_pass, {})
      .front()
      .generated;
}

TEST(DeviceLaunches, JoinedProductsDecodeWhatTheCpuDoes) {
  for (const char* type : {"sdar", "qwen2", "llada"}) {
    SCOPED_TRACE(type);
    ModelConfig config = tiny_config();
    config.model_type = type;
    config.attention_bias = config.model_type == "qwen2";
    config.rope_in_float32 = config.model_type == "llada";
    EXPECT_EQ(generated(on_cuda(config, at::kFloat)), generated(tiny_model(1, config)));
  }
}

// Caches need queries, keys or values alone, from the same weights.
TEST(DeviceLaunches, JoinedProductsDecodeUnderEveryCache) {
  ModelConfig config = tiny_config();
  config.attention_bidirectional = true;
  const BlockDiffusionModel device = on_cuda(config, at::kFloat);
  const BlockDiffusionModel host = tiny_model(1, config);
  for (const std::string kind : {"none", "prefix", "dual", "dllm-cache", "d2cache"}) {
    SCOPED_TRACE(kind);
    DecodeOptions options = tiny_options();
    options.bidirectional = true;
    options.cache.cache = kind;
    EXPECT_EQ(generated(device, options), generated(host, options));
  }
}

TEST(DeviceLaunches, GrowByNineALayer) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const bool narrow = dtype == at::kBFloat16;  // probabilities and the table are converted
    for (const int64_t layers : {2, 5}) {
      SCOPED_TRACE(::testing::Message() << c10::toString(dtype) << ", " << layers << " layers");
      ModelConfig config = tiny_config();
      config.num_layers = layers;
      DecodeOptions options = tiny_options();
      options.graphs = false;
      const std::vector<Work> passes = work_of_passes(on_cuda(config, dtype), options);
      // Products: queries, keys and values; output; gate and up; down.
      const int64_t step = (narrow ? 28 : 25) + 4 * layers;
      // The keys and the values of the block are stored; no token is chosen.
      const int64_t commit = (narrow ? 10 : 8) + 6 * layers;
      int64_t steps = 0;
      for (size_t i = 1; i + 1 < passes.size(); ++i) {  // after the prefill
        // Norm and rotation, attention, sum and norm, the gate, sum and norm; the first norm.
        EXPECT_EQ(passes[i].kernels, 1 + 5 * layers);
        if (passes[i].operators == step) ++steps;
        EXPECT_THAT(passes[i].operators, ::testing::AnyOf(step, commit)) << "pass " << i;
      }
      EXPECT_GE(steps, 12);
    }
  }
}

/// Sees the layers, and the weights of all keys.
struct Onlooker : DecodeObserver {
  bool wants_every_prediction() const override { return false; }
  std::vector<std::vector<int64_t>> key_ranges(const PassContext& context,
                                               int64_t /*layer*/) const override {
    return {{context.sequences.front().context_length}};
  }
  void on_attention(const AttentionView& view) override {
    EXPECT_NE(view.spread, nullptr);
    ++layers;
  }
  int64_t layers = 0;
};

TEST(DeviceLaunches, OfAGraphDoNotGrowWithTheLayers) {
  for (const int64_t layers : {2, 5}) {
    SCOPED_TRACE(layers);
    ModelConfig config = tiny_config();
    config.num_layers = layers;
    const BlockDiffusionModel model = on_cuda(config, at::kBFloat16);
    Onlooker onlooker;
    for (DecodeObserver* observer :
         {static_cast<DecodeObserver*>(nullptr), static_cast<DecodeObserver*>(&onlooker)}) {
      int64_t steps = 0;
      for (const Work& pass : work_of_passes(model, tiny_options(), observer)) {
        if (pass.graphs == 0 || pass.kernels > 0) continue;  // the others capture, or have none
        EXPECT_EQ(pass.graphs, 1);
        // The LM head over masked rows, their best tokens and probabilities; what the layers show
        // is copied in one operator for each of two types.
        EXPECT_EQ(pass.operators, observer == nullptr ? 18 : 20);
        ++steps;
      }
      EXPECT_EQ(steps, 6);  // the last two of each of three blocks
    }
    EXPECT_EQ(onlooker.layers, layers * 3 * (4 + 1));  // four steps and a commit a block
  }
}

}  // namespace
}  // namespace blockscope
