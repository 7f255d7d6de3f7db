#include "probe/run/capture_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <sstream>

#include "command_line/options.h"
#include "decode_record/base/error.h"
#include "decode_record/base/index_set.h"
#include "probe/checkpoint/rope.h"
#include "probe/strategies/strategy_table.h"

namespace blockscope {
namespace {

std::vector<int64_t> indices_or_all(const std::string& text, const std::string& flag,
                                    int64_t count) {
  std::vector<int64_t> indices = parse_index_set(text, flag, 0, count);
  if (indices.empty()) {
    indices.resize(static_cast<size_t>(count));
    std::iota(indices.begin(), indices.end(), 0);
  }
  return indices;
}

std::set<int64_t> index_filter(const std::string& text, const std::string& flag, int64_t first) {
  const std::vector<int64_t> indices = parse_index_set(text, flag, first);
  return {indices.begin(), indices.end()};
}

/// The KV heads that the recorded query heads read in any layer.
std::vector<int64_t> kv_heads_of(const std::vector<int64_t>& heads, const ModelConfig& config) {
  std::set<int64_t> kv_heads;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const int64_t group = config.num_heads / config.layer(layer).num_kv_heads;
    for (const int64_t head : heads) kv_heads.insert(head / group);
  }
  return {kv_heads.begin(), kv_heads.end()};
}

void check_record_values(const RecordFlags& flags, const ModelConfig& config) {
  if (flags.set_size > largest_position_count(config)) {
    throw UsageError(
        fmt::format("--set-size: expected at most the {} positions of this model, got {}",
                    largest_position_count(config), flags.set_size));
  }
  if (flags.set_normaliser != "prefix" && flags.set_normaliser != "prefix+block") {
    throw UsageError(fmt::format("--set-normaliser: expected prefix or prefix+block, got '{}'",
                                 flags.set_normaliser));
  }
  if (flags.array_type != "bf16" && flags.array_type != "f32") {
    throw UsageError(fmt::format("--array-type: expected bf16 or f32, got '{}'", flags.array_type));
  }
  if (flags.predictions != "all" && flags.predictions != "masked") {
    throw UsageError(
        fmt::format("--predictions: expected all or masked, got '{}'", flags.predictions));
  }
}

/// Fills what `options` says about /map. `positions`: the longest sequence of the run.
void read_maps(const std::string& text, int64_t positions, RecorderOptions& options) {
  if (text.empty()) return;
  constexpr const char* kFlag = "--record-maps";
  std::set<std::string> seen;
  TraceMeta& meta = options.meta;
  if (meta.has_draft) {
    throw UsageError(
        "--record-maps: expected a run without --draft. HINT: --record full keeps queries and "
        "keys; `blockscope analyze --matrix attention` computes weights from them");
  }
  meta.map_layers = meta.layers;
  meta.map_heads = meta.heads;
  meta.map_positions = positions;
  std::istringstream parts(text);
  std::string part;
  while (std::getline(parts, part, ';')) {
    const size_t equals = part.find('=');
    const std::string name = part.substr(0, equals);
    const std::string list = equals == std::string::npos ? "" : part.substr(equals + 1);
    const auto recorded = [&](const std::vector<int64_t>& all) {
      std::vector<int64_t> chosen = parse_index_set(list, fmt::format("{}: {}", kFlag, name), 0);
      for (const int64_t one : chosen) {
        if (std::ranges::binary_search(all, one)) continue;
        throw UsageError(fmt::format("{}: {}: expected recorded ones, {}, got {}", kFlag, name,
                                     fmt::join(all, ","), one));
      }
      return chosen;
    };
    if (!seen.insert(name).second) {
      throw UsageError(fmt::format("{}: expected {}= once, got it twice", kFlag, name));
    }
    if (list.empty() || (name != "layers" && name != "heads" && name != "steps")) {
      throw UsageError(
          fmt::format("{}: expected layers=, heads= or steps= with a list such as 0-3,7, got '{}'",
                      kFlag, part));
    }
    if (name == "layers") meta.map_layers = recorded(meta.layers);
    if (name == "heads") meta.map_heads = recorded(meta.heads);
    if (name == "steps") {
      options.map_steps = index_filter(list, "--record-maps: steps", 1);
      for (const int64_t step : options.map_steps) {
        if (allows(options.filter.steps, step)) continue;
        throw UsageError(fmt::format("{}: steps: expected recorded ones, {}, got {}", kFlag,
                                     fmt::join(options.filter.steps, ","), step));
      }
    }
  }
}

}  // namespace

void add_predictions_flag(CLI::App& app, RecordFlags& flags) {
  app.add_option("--predictions", flags.predictions,
                 "Positions whose predictions are recorded: masked, or all (8 to 22 % slower)")
      ->capture_default_str();
}

void add_record_flags(CLI::App& app, RecordFlags& flags) {
  app.add_option("--record", flags.level, "Level: trajectory, summary, sets, outputs or full")
      ->capture_default_str();
  app.add_option("--layers", flags.layers, "Recorded layers, such as 0-3,7 (default: all)");
  app.add_option("--heads", flags.heads, "Recorded query heads (default: all)");
  app.add_option("--steps", flags.steps, "Recorded denoising steps, from 1 (default: all)");
  app.add_option("--blocks", flags.blocks, "Recorded blocks, absolute, from 0 (default: all)");
  app.add_option("--sequences", flags.sequences, "Recorded prompts, from 0 (default: all)");
  app.add_option("--set-size", flags.set_size, "k of the top-k sets")
      ->check(whole_number(1))
      ->capture_default_str();
  app.add_option("--set-normaliser", flags.set_normaliser,
                 "Keys over which set probabilities sum to 1: prefix or prefix+block")
      ->capture_default_str();
  app.add_option("--array-type", flags.array_type, "Type of the large arrays: bf16 or f32")
      ->capture_default_str();
  add_predictions_flag(app, flags);
  app.add_flag("--record-router", flags.router, "Record which experts the routers choose");
  app.add_option("--record-maps", flags.maps,
                 "Record the attention weights themselves: \"layers=3,9;heads=0-3;steps=1,8\"");
  less_usual(app, "Recording",
             {"--heads", "--blocks", "--sequences", "--set-size", "--set-normaliser",
              "--array-type", "--predictions", "--record-router", "--record-maps"});
}

int64_t longest_prefix(const std::vector<RunPrompt>& prompts, const DecodeOptions& decode) {
  int64_t longest = 0;
  for (const RunPrompt& prompt : prompts) {
    longest = std::max(longest, cache_positions(static_cast<int64_t>(prompt.request.prompt.size()),
                                                prompt.request.gen_length, decode));
  }
  if (decode.bidirectional) longest -= decode.block_length();
  return longest;
}

bool takes_tokens_back(const std::vector<RunPrompt>& prompts, const DecodeOptions& decode) {
  const auto revokes = [&](const ReplayStep& step) {
    return std::find(step.tokens.begin(), step.tokens.end(), decode.mask_token_id) !=
           step.tokens.end();
  };
  const StrategyEntry& strategy = strategy_entry(decode.unmasking);
  return strategy.second_look || (strategy.edit && !decode.autoregressive()) ||
         std::any_of(prompts.begin(), prompts.end(), [&](const RunPrompt& prompt) {
           const auto& replay = prompt.request.replay;
           return std::any_of(replay.begin(), replay.end(), revokes);
         });
}

RecorderOptions recorder_options(const RecordFlags& flags, const AttentionPolicy& policy,
                                 int64_t longest, const LoadedModel& model,
                                 const DecodeOptions& decode) {
  const ModelConfig& config = model.config;
  RecorderOptions options;
  TraceMeta& meta = options.meta;
  static_cast<LayerSizes&>(meta) = layer_sizes(config);
  meta.hidden_size = config.hidden_size;
  meta.vocab_size = config.vocab_size;
  meta.noise_canvas = decode.canvas;
  meta.mask_token_id = decode.mask_token_id;
  meta.logit_shift = decode.autoregressive() ? 1 : config.logit_shift;
  meta.bidirectional = decode.bidirectional;
  meta.softmax_scale = config.gemma ? 1.0 : 1.0 / std::sqrt(static_cast<double>(config.head_dim));
  meta.block_length = decode.block_length();
  meta.level = parse_record_level(flags.level);
  meta.layers = indices_or_all(flags.layers, "--layers", config.num_layers);
  meta.heads = indices_or_all(flags.heads, "--heads", config.num_heads);
  meta.kv_heads = kv_heads_of(meta.heads, config);
  check_record_values(flags, config);
  meta.set_size = meta.level >= RecordLevel::sets ? flags.set_size : 0;
  meta.set_normaliser =
      flags.set_normaliser == "prefix" ? SetNormaliser::prefix : SetNormaliser::prefix_and_block;
  meta.array_type = flags.array_type == "bf16" ? ArrayType::bf16 : ArrayType::f32;
  meta.has_set_norms = meta.set_size > 0;
  meta.has_interventions = policy.intervenes();
  meta.has_shadow = decode.shadow;
  meta.has_cache = decode.bidirectional;
  meta.has_draft = decode.drafted;
  meta.has_kl = strategy_entry(decode.unmasking).remembers;
  meta.has_since_read = !decode.drafted;
  if (flags.router) {
    if (!config.moe) {
      throw UsageError(fmt::format(
          "--record-router: expected a model with experts, got model_type \"{}\" without experts. "
          "HINT: leave the option out",
          config.model_type));
    }
    meta.experts_per_token = config.moe->experts_per_token;
    meta.num_experts = config.moe->num_experts;
  }
  if (meta.level >= RecordLevel::summary) {
    meta.selected_size = policy.selected_size(longest);
    meta.has_residual = policy.keeps_residual();
    meta.regions.assign(kRegionNames.begin(), kRegionNames.end());
    meta.distance_bins = kDistanceBins;
    meta.has_answer_blocks = true;
    meta.has_kept_pair = meta.has_since_read;
  }
  meta.model_json = model.model_json();
  options.filter = {index_filter(flags.steps, "--steps", 1),
                    index_filter(flags.blocks, "--blocks", 0),
                    index_filter(flags.sequences, "--sequences", 0)};
  read_maps(flags.maps, longest + (decode.bidirectional ? decode.block_length() : 0), options);
  options.every_prediction =
      flags.predictions == "all" || decode.autoregressive() || decode.drafted || decode.canvas;
  options.exact_known = policy.name() == "exact" || decode.shadow;
  options.autoregressive = decode.autoregressive();
  return options;
}

void check_record_flags(const CLI::App& app, const RecordFlags& flags) {
  const RecordLevel level = parse_record_level(flags.level);
  for (const char* filter : {"--layers", "--heads", "--steps", "--blocks", "--sequences"}) {
    refuse_idle(app, filter, level >= RecordLevel::summary, "--record summary or above");
  }
  refuse_idle(app, "--set-size", level >= RecordLevel::sets, "--record sets or above");
  refuse_idle(app, "--set-normaliser", level >= RecordLevel::sets, "--record sets or above");
  refuse_idle(app, "--record-router", level >= RecordLevel::summary, "--record summary or above");
  refuse_idle(app, "--record-maps", level >= RecordLevel::summary, "--record summary or above");
  refuse_idle(app, "--array-type", level >= RecordLevel::outputs, "--record outputs or above");
}

void check_filter(const RecorderOptions& recorder, const DecodeOptions& decode,
                  const std::vector<RunPrompt>& prompts) {
  const auto check = [](const char* flag, const std::set<int64_t>& filter, int64_t last,
                        const char* what) {
    if (filter.empty() || *filter.rbegin() <= last) return;
    throw UsageError(fmt::format("{}: {} is beyond this run: its last {} is {}", flag,
                                 *filter.rbegin(), what, last));
  };
  int64_t last_block = 0;
  for (const RunPrompt& prompt : prompts) {
    const auto length = static_cast<int64_t>(prompt.request.prompt.size());
    const int64_t total = cache_positions(length, prompt.request.gen_length, decode);
    const int64_t origin = block_start(length, 0, decode);
    last_block = std::max(last_block, (total - origin) / decode.block_length() - 1);
  }
  check("--sequences", recorder.filter.sequences, static_cast<int64_t>(prompts.size()) - 1,
        "sequence");
  check("--blocks", recorder.filter.blocks, last_block, "block");
  check("--record-maps: steps", recorder.map_steps,
        decode.autoregressive() ? 1 : most_steps(decode.unmasking), "step of a block");
  check("--steps", recorder.filter.steps,
        decode.autoregressive() ? 1 : most_steps(decode.unmasking), "step of a block");
}

}  // namespace blockscope
