// A tiny random block-diffusion model built in code, and requests and options to decode with it.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "probe/decode/decoder.h"
#include "probe/model/block_diffusion_model.h"
#include "probe/policies/exact_policy.h"
#include "tests/support/seed.h"

namespace blockscope::testing {

inline constexpr int64_t kTinyBlock = 4;
inline constexpr int64_t kTinyVocab = 40;
inline constexpr int64_t kTinyMask = 39;

/// head_dim is not hidden_size / num_heads, and two query heads share a KV head.
inline ModelConfig tiny_config() {
  ModelConfig config;
  config.model_type = "sdar";
  config.architecture = "SDARForCausalLM";
  config.num_layers = 2;
  config.hidden_size = 24;
  config.intermediate_size = 32;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 10;
  config.vocab_size = kTinyVocab;
  config.max_position_embeddings = 256;
  config.rms_norm_eps = 1e-6;
  config.qk_norm = true;
  config.dtype = "float32";
  config.mask_token_id = Resolved<std::int64_t>{kTinyMask, "test"};
  config.block_length = Resolved<std::int64_t>{kTinyBlock, "test"};
  return config;
}

/// The same with a mixture of four experts, two for a row, in its second layer.
inline ModelConfig tiny_mixture_config() {
  ModelConfig config = tiny_config();
  config.model_type = "sdar_moe";
  MoeConfig& moe = config.moe.emplace();
  moe.num_experts = 4;
  moe.experts_per_token = 2;
  moe.intermediate_size = 12;
  moe.normalise = true;
  moe.sparse = {false, true};
  return config;
}

/// Weights large enough that predictions depend on the whole prefix and no two logits tie.
inline BlockDiffusionModel tiny_model(uint64_t seed = 1,
                                      const ModelConfig& config = tiny_config()) {
  at::set_num_threads(1);  // waking threads costs more than these tensors
  SeededRandom random(seed);
  WeightMap weights;
  for (const ExpectedTensor& tensor : expected_tensors(config)) {
    at::Tensor values = at::empty(tensor.shape, at::kFloat);
    float* data = values.data_ptr<float>();
    const bool norm = tensor.name.find("norm") != std::string::npos;
    for (int64_t i = 0; i < values.numel(); ++i) {
      data[i] = static_cast<float>(norm ? 1.0 + 0.3 * random.normal() : 0.5 * random.normal());
    }
    weights.emplace(tensor.name, std::move(values));
  }
  return {config, std::move(weights)};
}

/// The same model with its weights on a device.
inline BlockDiffusionModel moved_to(at::Device device, const BlockDiffusionModel& host) {
  WeightMap weights;
  for (const auto& [name, weight] : host.weights()) weights.emplace(name, weight.to(device));
  return {host.config(), std::move(weights)};
}

/// The same as the runtime loads it: weights of the same rows next to each other, and packed.
inline BlockDiffusionModel packed_on(at::Device device, const BlockDiffusionModel& host,
                                     at::ScalarType dtype = at::kFloat) {
  WeightMap weights = empty_weights(host.config(), dtype, device);
  for (const auto& [name, weight] : host.weights()) weights.at(name).copy_(weight);
  return BlockDiffusionModel(host.config(), std::move(weights)).packed();
}

inline std::vector<int64_t> random_prompt(SeededRandom& random, int64_t length) {
  std::vector<int64_t> prompt;
  for (int64_t i = 0; i < length; ++i) prompt.push_back(random.integer(0, kTinyMask - 1));
  return prompt;
}

inline DecodeRequest tiny_request(int64_t sequence, int64_t prompt_length, int64_t gen_length) {
  SeededRandom random(1000 + static_cast<uint64_t>(sequence));
  DecodeRequest request;
  request.sequence = sequence;
  request.prompt = random_prompt(random, prompt_length);
  request.gen_length = gen_length;
  request.prompt_hash = random.next();
  return request;
}

inline DecodeOptions tiny_options() {
  DecodeOptions options;
  options.unmasking.block_length = kTinyBlock;
  options.unmasking.denoising_steps = kTinyBlock;
  options.mask_token_id = kTinyMask;
  return options;
}

/// Every pass as the decoder showed it.
struct PassLog : DecodeObserver {
  struct Entry {
    PassContext context;
    int64_t length;
    int64_t start;
    std::vector<StepDecision> decisions;
  };
  std::vector<Entry> passes;

  void on_pass(const PassResult& result) override {
    passes.push_back({result.context, result.length, result.start, result.decisions});
  }

  /// The denoising passes of one sequence, as a replay takes them, and what blocks began with.
  std::vector<ReplayStep> steps_of(int64_t sequence, int64_t block_length) const {
    std::vector<ReplayStep> steps;
    for (const Entry& entry : passes) {
      for (size_t s = 0; s < entry.context.sequences.size(); ++s) {
        const SequencePass& pass = entry.context.sequences[s];
        if (pass.sequence != sequence) continue;
        if (s < entry.decisions.size() && entry.decisions[s].next) {
          const bool prefill = pass.kind == PassKind::prefill;
          const int64_t begin =
              prefill ? entry.start + entry.length : (pass.block + 1) * block_length;
          const NextToken& next = *entry.decisions[s].next;
          steps.push_back({begin / block_length, 0, {begin}, {next.token}, {next.confidence}});
        }
        if (pass.kind != PassKind::denoise) continue;
        ReplayStep step{pass.block, pass.step, {}, {}, {}};
        for (const int64_t p : entry.decisions[s].transferred) {
          const size_t at = static_cast<size_t>(p);
          step.positions.push_back(pass.block * block_length + p);
          step.tokens.push_back(entry.decisions[s].prediction.token[at]);
          step.confidence.push_back(entry.decisions[s].prediction.confidence[at]);
        }
        steps.push_back(std::move(step));
      }
    }
    return steps;
  }
};

inline std::vector<DecodeOutcome> decode_all(const BlockDiffusionModel& model,
                                             AttentionPolicy& policy, const DecodeOptions& options,
                                             const std::vector<DecodeRequest>& requests,
                                             DecodeObserver* observer = nullptr) {
  int64_t next_pass = 0;
  DecodeCallbacks callbacks;
  callbacks.observer = observer;
  return decode_batch(model, policy, options, requests, next_pass, callbacks);
}

inline std::vector<DecodeOutcome> decode_exact(const BlockDiffusionModel& model,
                                               const DecodeOptions& options,
                                               const std::vector<DecodeRequest>& requests,
                                               DecodeObserver* observer = nullptr) {
  const auto policy = make_exact_policy();
  return decode_all(model, *policy, options, requests, observer);
}

}  // namespace blockscope::testing
