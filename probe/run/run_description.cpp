#include "probe/run/run_description.h"

#include <nlohmann/json.hpp>

#include "cmake/build_info/build_info.h"
#include "decode_record/sha256.h"
#include "kernels/ops.h"

namespace blockscope {
namespace {

/// Of everything that a prompt brings to the run and to its trace.
std::string digest_of(const std::vector<RunPrompt>& prompts) {
  nlohmann::json all = nlohmann::json::array();
  for (const RunPrompt& prompt : prompts) {
    nlohmann::json replay = nlohmann::json::array();
    for (const ReplayStep& step : prompt.request.replay) {
      replay.push_back({step.block, step.positions, step.tokens});
    }
    all.push_back({prompt.name, prompt.request.prompt, prompt.request.gen_length, prompt.answers,
                   prompt.metric.has_value() ? metric_name(*prompt.metric) : "", replay});
  }
  return sha256_hex(all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace

std::string run_json(const RunDescription& run) {
  const DecodeOptions& decode = run.decode;
  const auto& build = build_info();
  nlohmann::json json = {
      {"command_line", run.command_line},
      {"version", build.version},
      {"git", build.git_describe},
      {"libtorch", build.torch_pin},
      {"instruction_set", instruction_set()},
      {"decoding", decode.autoregressive() ? "autoregressive" : "block_diffusion"},
      {"strategy", strategy_name(decode.unmasking.strategy)},
      {"block_length", decode.block_length()},
      {"denoising_steps", decode.unmasking.denoising_steps},
      {"threshold", decode.unmasking.threshold},
      {"eb_threshold", decode.unmasking.eb_threshold},
      {"factor", decode.unmasking.factor},
      {"temperature", decode.sampling.temperature},
      {"top_k", decode.sampling.top_k},
      {"top_p", decode.sampling.top_p},
      {"seed", decode.sampling.seed},
      {"stop_ids", decode.stop_ids},
      {"gen_length", run.decoding.gen_length},
      {"cache", cache_name(decode.cache.kind)},
      {"batch_size", run.decoding.batch_size},
      {"shadow", decode.shadow},
      {"replay", run.replay},
      {"rank", run.environment.rank},
      {"world_size", run.environment.world_size},
  };
  if (decode.cache.kind == CacheKind::kDllm) {
    json["prompt_interval"] = decode.cache.prompt_interval;
    json["answer_interval"] = decode.cache.answer_interval;
    json["transfer_ratio"] = decode.cache.transfer_ratio;
  }
  if (decode.cache.kind == CacheKind::kD2) {
    json["current_k"] = decode.cache.current_k;
    json["certainty_sigma"] = decode.cache.sigma;
    json["rollout_p"] = decode.cache.rollout_p;
    json["inflate_window"] = decode.cache.inflate_window;
    json["as_released"] = decode.cache.as_released;
  }
  json.update(nlohmann::json::parse(run.policy.settings));
  json["recorded_steps"] = run.filter.steps;
  json["recorded_blocks"] = run.filter.blocks;
  json["recorded_sequences"] = run.filter.sequences;
  json["num_prompts"] = run.prompts.size();
  json["prompts_digest"] = digest_of(run.prompts);
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::vector<std::string> vocabulary_pieces(const Tokenizer* tokenizer, int64_t vocab_size) {
  std::vector<std::string> pieces;
  if (tokenizer == nullptr) return pieces;
  for (int64_t id = 0; id < vocab_size; ++id) {
    pieces.push_back(tokenizer->token_bytes(static_cast<TokenId>(id)));
  }
  return pieces;
}

}  // namespace blockscope
