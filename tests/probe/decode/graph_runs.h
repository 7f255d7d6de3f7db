// Runs whose steps are graphs, on the emulated cuda:0 with emulated kernels.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "probe/decode/decoder.h"
#include "probe/policies/flashblock_policy.h"
#include "probe/policies/mage_policy.h"
#include "tests/support/emulated_cuda.h"
#include "tests/support/tiny_model.h"

namespace blockscope::testing {

using MakePolicy = std::function<std::unique_ptr<AttentionPolicy>()>;

inline DecodeOptions options_of_eight() {
  DecodeOptions options = tiny_options();
  options.unmasking.block_length = 8;
  options.unmasking.denoising_steps = 8;
  return options;
}

inline std::vector<DecodeRequest> two_requests() {
  return {tiny_request(0, 17, 32), tiny_request(1, 26, 24)};
}

inline std::vector<std::vector<int64_t>> tokens_of(const BlockDiffusionModel& model,
                                                   const MakePolicy& make,
                                                   const DecodeOptions& options,
                                                   const std::vector<DecodeRequest>& requests,
                                                   DecodeObserver* observer = nullptr) {
  const std::unique_ptr<AttentionPolicy> policy = make();
  std::vector<std::vector<int64_t>> tokens;
  for (const DecodeOutcome& outcome : decode_all(model, *policy, options, requests, observer)) {
    tokens.push_back(outcome.generated);
  }
  return tokens;
}

/// Launches of graphs in a run whose tokens are the CPU's.
inline int64_t graphs_of_equal_run(const ModelConfig& config, const MakePolicy& make,
                                   DecodeOptions options,
                                   const std::vector<DecodeRequest>& requests) {
  const BlockDiffusionModel host = tiny_model(7, config);
  const BlockDiffusionModel device = packed_on(at::kCUDA, host);
  const auto want = tokens_of(host, make, options, requests);
  options.graphs = false;
  emulated_cuda::reset_counters();
  EXPECT_EQ(tokens_of(device, make, options, requests), want);
  const int64_t waits = emulated_cuda::counters().host_waits();
  EXPECT_EQ(emulated_cuda::counters().captures, 0);
  options.graphs = true;
  emulated_cuda::reset_counters();
  EXPECT_EQ(tokens_of(device, make, options, requests), want);
  EXPECT_LE(emulated_cuda::counters().host_waits(), waits);
  return emulated_cuda::counters().graphs;
}

inline SelectionOptions selection(int64_t k, bool residual = false) {
  SelectionOptions options;
  options.num_layers = tiny_config().num_layers;
  options.k = k;
  options.residual = residual;
  return options;
}

inline FlashBlockOptions flashblock(int64_t tau, bool calibrated) {
  const ModelConfig config = tiny_config();
  FlashBlockOptions options{config.num_layers, config.num_heads, {static_cast<double>(tau)}, {}};
  if (calibrated) options.reuse.heads = {{{true, false, true, true}, {false, false, false, false}}};
  return options;
}

}  // namespace blockscope::testing
