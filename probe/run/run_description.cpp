#include "probe/run/run_description.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "cmake/build_info/build_info.h"
#include "decode_record/base/sha256.h"
#include "decode_record/base/text.h"
#include "kernels/cuda/device_operators.h"
#include "kernels/ops.h"
#include "probe/strategies/strategy_table.h"

namespace blockscope {
namespace {

/// The digest of everything that the prompts add to the run and to its trace.
std::string digest_of(const std::vector<RunPrompt>& prompts) {
  Sha256 hash;  // of one JSON array, prompt by prompt to save memory
  std::string before = "[";
  const auto update = [&hash](const std::string& text) {
    hash.update({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
  };
  for (const RunPrompt& prompt : prompts) {
    nlohmann::json replay = nlohmann::json::array();
    for (const ReplayStep& step : prompt.request.replay) {
      replay.push_back({step.block, step.positions, step.tokens});
      if (!step.noise_positions.empty()) {
        replay.back().push_back(step.noise_positions);
        replay.back().push_back(step.noise_tokens);
      }
      if (!step.deleted.empty()) replay.push_back({step.inserted, step.deleted});
    }
    nlohmann::json one = {prompt.name,
                          prompt.request.prompt,
                          prompt.request.gen_length,
                          prompt.answers,
                          prompt.metric.has_value() ? metric_name(*prompt.metric) : "",
                          replay};
    if (!prompt.request.regions.of_token.empty()) one.push_back(prompt.request.regions.of_token);
    update(before + one.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    before = ",";
  }
  update(prompts.empty() ? "[]" : "]");
  return fmt::format("{:02x}", fmt::join(hash.finish(), ""));
}

/// A key that may differ between a run and the run that it continues.
struct Fact {
  std::string_view name;
  std::string (*value)(const RunDescription&);
};
const std::array kFacts{
    Fact{"command_line", [](const RunDescription& run) { return run.command_line; }},
    Fact{"version", [](const RunDescription&) { return std::string(build_info().version); }},
    Fact{"git", [](const RunDescription&) { return std::string(build_info().git_describe); }},
    Fact{"libtorch", [](const RunDescription&) { return std::string(build_info().torch_pin); }},
    Fact{"instruction_set", [](const RunDescription&) { return std::string(instruction_set()); }},
    Fact{"prefix_attention", [](const RunDescription&) { return cuda_prefix_attention(); }},
};
/// Keys without information of their own: `strategy_text` and `most_steps` follow from other keys,
/// and `blockscope repack` adds `repacked`.
constexpr std::array<std::string_view, 3> kOthers{"strategy_text", "most_steps", "repacked"};

}  // namespace

bool is_setting(std::string_view key) {
  return std::ranges::count(kFacts, key, &Fact::name) == 0 && std::ranges::count(kOthers, key) == 0;
}

std::string decoding_json(const DecodeOptions& decode) {
  nlohmann::json json = strategy_json(decode.unmasking);
  json.update({{"strategy_text", strategy_text(decode.unmasking)},
               {"block_length", decode.block_length()},
               {"denoising_steps", decode.unmasking.denoising_steps},
               {"temperature", decode.sampling.temperature},
               {"top_k", decode.sampling.top_k},
               {"top_p", decode.sampling.top_p},
               {"seed", decode.sampling.seed},
               {"stop_ids", decode.stop_ids},
               {"cache", decode.cache.cache}});
  json.update(choice_json(cache_entry(decode.cache), decode.cache));
  if (decode.sub_blocks()) json["sub_block_length"] = decode.sub_block_length;
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string run_json(const RunDescription& run) {
  const DecodeOptions& decode = run.decode;
  nlohmann::json json = {
      {"decoding", decode.drafted            ? "drafted"
                   : decode.autoregressive() ? "autoregressive"
                                             : "block_diffusion"},
      {"gen_length", run.decoding.gen_length},
      {"batch_size", run.decoding.batch_size},
      {"shadow", decode.shadow},
      {"replay", run.replay},
      {"rank", run.ranks.rank},
      {"world_size", run.ranks.world_size},
  };
  json.update(nlohmann::json::parse(decoding_json(decode)));
  json["most_steps"] = decode.autoregressive() ? 1 : most_steps(decode.unmasking);
  json.update(nlohmann::json::parse(run.policy.settings));
  const RecordFilter& filter = run.recorder.filter;
  json["recorded_steps"] = filter.steps;
  json["recorded_blocks"] = filter.blocks;
  if (!run.recorder.meta.map_layers.empty()) json["map_steps"] = run.recorder.map_steps;
  json["recorded_sequences"] = filter.sequences;
  json["predictions"] = run.recorder.every_prediction ? "all" : "masked";
  json["num_prompts"] = run.prompts.size();
  json["prompts_digest"] = digest_of(run.prompts);
  for (const Fact& fact : kFacts) {
    const std::string value = fact.value(run);
    if (!value.empty()) json[fact.name] = value;
  }
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
