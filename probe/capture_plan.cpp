#include "probe/capture_plan.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "decode_record/error.h"
#include "decode_record/index_set.h"
#include "decode_record/trace_layout.h"
#include "probe/kv_cache.h"
#include "probe/progress.h"

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

bool allows(const std::set<int64_t>& filter, int64_t value) {
  return filter.empty() || filter.count(value) > 0;
}

/// KV heads that a recorded query head reads.
std::vector<int64_t> kv_heads_of(const std::vector<int64_t>& heads, const ModelConfig& config) {
  std::set<int64_t> kv_heads;
  for (const int64_t head : heads) kv_heads.insert(head / (config.num_heads / config.num_kv_heads));
  return {kv_heads.begin(), kv_heads.end()};
}

}  // namespace

void add_record_flags(CLI::App& app, RecordFlags& flags) {
  app.add_option("--record", flags.level, "trajectory, summary, sets, outputs or full")
      ->capture_default_str();
  app.add_option("--layers", flags.layers, "Recorded layers, such as 0-3,7 (default: all)");
  app.add_option("--heads", flags.heads, "Recorded query heads (default: all)");
  app.add_option("--steps", flags.steps, "Recorded denoising steps, from 1 (default: all)");
  app.add_option("--blocks", flags.blocks, "Recorded blocks, absolute, from 0 (default: all)");
  app.add_option("--sequences", flags.sequences, "Recorded prompts, from 0 (default: all)");
  app.add_option("--set-size", flags.set_size, "k of the top-k sets")->capture_default_str();
  app.add_option("--set-normaliser", flags.set_normaliser,
                 "Keys the set probabilities sum to 1 over: prefix or prefix+block")
      ->capture_default_str();
  app.add_option("--array-type", flags.array_type, "Type of the large arrays: bf16 or f32")
      ->capture_default_str();
}

RecorderOptions recorder_options(const RecordFlags& flags, const PolicyFlags& policy,
                                 const LoadedModel& model, const DecodeOptions& decode) {
  const ModelConfig& config = model.config;
  RecorderOptions options;
  TraceMeta& meta = options.meta;
  meta.num_layers = config.num_layers;
  meta.num_heads = config.num_heads;
  meta.num_kv_heads = config.num_kv_heads;
  meta.head_dim = config.head_dim;
  meta.hidden_size = config.hidden_size;
  meta.vocab_size = config.vocab_size;
  meta.mask_token_id = decode.mask_token_id;
  meta.logit_shift = decode.autoregressive() ? 1 : 0;
  meta.softmax_scale = 1.0 / std::sqrt(static_cast<double>(config.head_dim));
  meta.block_length = decode.block_length();
  meta.level = parse_record_level(flags.level);
  meta.layers = indices_or_all(flags.layers, "--layers", config.num_layers);
  meta.heads = indices_or_all(flags.heads, "--heads", config.num_heads);
  meta.kv_heads = kv_heads_of(meta.heads, config);
  if (flags.set_size < 1) {
    throw UsageError(fmt::format("--set-size: expected at least 1, got {}", flags.set_size));
  }
  if (flags.set_normaliser != "prefix" && flags.set_normaliser != "prefix+block") {
    throw UsageError(fmt::format("--set-normaliser: expected prefix or prefix+block, got '{}'",
                                 flags.set_normaliser));
  }
  if (flags.array_type != "bf16" && flags.array_type != "f32") {
    throw UsageError(fmt::format("--array-type: expected bf16 or f32, got '{}'", flags.array_type));
  }
  meta.set_size = meta.level >= RecordLevel::sets ? flags.set_size : 0;
  meta.set_normaliser =
      flags.set_normaliser == "prefix" ? SetNormaliser::prefix : SetNormaliser::prefix_and_block;
  meta.array_type = flags.array_type == "bf16" ? ArrayType::bf16 : ArrayType::f32;
  meta.has_shadow = policy.shadow;
  meta.model_json = model.model_json();
  options.filter = {index_filter(flags.steps, "--steps", 1),
                    index_filter(flags.blocks, "--blocks", 0),
                    index_filter(flags.sequences, "--sequences", 0)};
  options.exact_known = policy.policy == "exact" || policy.shadow;
  options.autoregressive = decode.autoregressive();
  return options;
}

CaptureCost capture_cost(const RecorderOptions& recorder, const DecodeOptions& decode,
                         const std::vector<RunPrompt>& prompts, int64_t batch_size,
                         const LoadedModel& model) {
  const TraceMeta& meta = recorder.meta;
  const RowCost row = row_cost(meta);
  const int64_t block_length = decode.block_length();
  CaptureCost cost;
  for (const RunPrompt& prompt : prompts) {
    const int64_t length = static_cast<int64_t>(prompt.request.prompt.size());
    const int64_t total = cache_positions(length, prompt.request.gen_length, decode);
    const int64_t steps = decode.autoregressive() ? 1 : decode.unmasking.denoising_steps;
    for (int64_t block = length / block_length; block < total / block_length; ++block) {
      for (int64_t step = 1; step <= steps; ++step) {
        const bool recorded = allows(recorder.filter.steps, step) &&
                              allows(recorder.filter.blocks, block) &&
                              allows(recorder.filter.sequences, prompt.request.sequence);
        cost.file_bytes += static_cast<int64_t>(recorded ? row.recorded : row.filtered);
      }
      cost.file_bytes += static_cast<int64_t>(row.filtered);
    }
    if (meta.level >= RecordLevel::full) {
      for (const Field field : {Field::prefix_key, Field::prefix_value}) {
        cost.file_bytes += total * static_cast<int64_t>(row_bytes(spec_of(field), meta));
      }
    }
  }
  const int64_t sequences = std::min<int64_t>(batch_size, static_cast<int64_t>(prompts.size()));
  const ModelConfig& config = model.config;
  for (size_t first = 0; first < prompts.size(); first += static_cast<size_t>(batch_size)) {
    const std::vector<DecodeRequest> batch = batch_requests(prompts, first, batch_size);
    const KvCacheShape shape = cache_shape(config, batch, decode);
    cost.kv_cache_bytes = std::max(cost.kv_cache_bytes, KvCache::size_bytes(shape, model.dtype));
  }
  if (meta.level >= RecordLevel::summary) {
    // Previous step, up to four reuse sources, step 1's queries: float32 [H, B, D] each; step 1's
    // probabilities and their logarithms: float32 [B, V] each.
    const int64_t per_layer = 7 * config.num_heads * block_length * config.head_dim * 4;
    cost.recorder_bytes = sequences * (static_cast<int64_t>(meta.layers.size()) * per_layer +
                                       2 * block_length * config.vocab_size * 4);
  }
  return cost;
}

void check_free_space(const std::string& path, int64_t bytes) {
  std::error_code error;
  std::filesystem::path folder = std::filesystem::absolute(path, error).parent_path();
  const auto space = std::filesystem::space(folder, error);
  if (error) return;  // the writer will say what is wrong with the place
  if (static_cast<uint64_t>(bytes) > space.available) {
    throw TraceError(fmt::format(
        "{}: the trace can take up to {}, and {} are free there. HINT: record less (--record, "
        "--layers, --heads, --steps, --blocks), or --no-space-check if blocks end early",
        path, format_bytes(static_cast<double>(bytes)),
        format_bytes(static_cast<double>(space.available))));
  }
}

}  // namespace blockscope
