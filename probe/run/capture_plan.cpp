#include "probe/run/capture_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <set>
#include <sstream>

#include "command_line/options.h"
#include "command_line/progress.h"
#include "decode_record/base/error.h"
#include "decode_record/base/index_set.h"
#include "decode_record/frames/decode_record.h"
#include "decode_record/schema/trace_layout.h"
#include "probe/checkpoint/rope.h"
#include "probe/decode/decode_observer.h"
#include "probe/decode/kv_cache.h"
#include "probe/record/late_recorder.h"
#include "probe/run/device_option.h"
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

/// The KV heads that the recorded query heads read.
std::vector<int64_t> kv_heads_of(const std::vector<int64_t>& heads, const ModelConfig& config) {
  std::set<int64_t> kv_heads;
  for (const int64_t head : heads) kv_heads.insert(head / (config.num_heads / config.num_kv_heads));
  return {kv_heads.begin(), kv_heads.end()};
}

/// The number of keys that the rows of a sequence store at level full.
int64_t stored_keys(int64_t prompt_length, int64_t total, int64_t steps,
                    const DecodeOptions& decode) {
  if (!decode.bidirectional) return total;
  int64_t keys = 0;
  for (int64_t start = prompt_length; start < total; start += decode.block_length()) {
    const bool last = start + decode.block_length() == total;
    keys += total;
    keys += (steps - 1) * cache_entry(decode.cache).later_keys(start, total, last);
  }
  return keys;
}

/// The trace of a run whose blocks all take every step and decide one token at a time.
TraceExtent longest_trace(const RecorderOptions& recorder, const DecodeOptions& decode,
                          const std::vector<RunPrompt>& prompts) {
  constexpr int64_t kNameBytes = 64;  // name, answer and metric of a prompt
  const TraceMeta& meta = recorder.meta;
  const int64_t block_length = decode.block_length();
  const int64_t steps = decode.autoregressive() ? 1 : most_steps(decode.unmasking);
  size_t longest_piece = 0;
  for (const std::string& piece : meta.pieces)
    longest_piece = std::max(longest_piece, piece.size());
  TraceExtent extent;
  for (const RunPrompt& prompt : prompts) {
    const int64_t length = static_cast<int64_t>(prompt.request.prompt.size());
    const int64_t total = cache_positions(length, prompt.request.gen_length, decode);
    const int64_t generated = generated_positions(length, prompt.request.gen_length, decode);
    const int64_t first = first_block(length, decode);
    const int64_t blocks = (total - block_start(length, first, decode)) / block_length;
    const int64_t beside = decode.bidirectional ? 0 : 1;  // the prefill, then one commit per block
    int64_t rows = beside;
    for (int64_t block = first; block < first + blocks; ++block) {
      rows += steps + beside;
      for (int64_t step = 1; step <= steps; ++step) {
        const bool recorded = allows(recorder.filter.steps, step) &&
                              allows(recorder.filter.blocks, block) &&
                              allows(recorder.filter.sequences, prompt.request.sequence);
        extent.recorded_rows += recorded ? 1 : 0;
        extent.map_rows += recorded && allows(recorder.map_steps, step) ? 1 : 0;
      }
    }
    const int64_t keyframes = rows / static_cast<int64_t>(kKeyframeInterval) + 1;
    extent.length(Axis::row) += rows;
    extent.length(Axis::sequence) += 1;
    extent.length(Axis::prompt_element) += length;
    extent.length(Axis::text_byte) +=
        static_cast<int64_t>(prompt.name.size()) + kNameBytes +
        generated * std::max<int64_t>(static_cast<int64_t>(longest_piece), 1);
    extent.length(Axis::delta) += generated;
    if (meta.has_cache) {
      const int64_t ranges =
          rows * meta.num_layers * cache_entry(decode.cache).ranges(decode.cache, generated, total);
      for (const Axis axis : {Axis::query_range, Axis::key_range, Axis::value_range}) {
        extent.length(axis) += ranges;
      }
    }
    extent.length(Axis::keyframe) += keyframes;
    extent.length(Axis::keyframe_element) += keyframes * generated;
    extent.length(Axis::prefix_element) += stored_keys(length, total, steps, decode);
  }
  return extent;
}

/// The recorder's memory for one sequence: the current row, the row that is being written, and what
/// later steps are compared with.
int64_t recorder_memory(const RecorderOptions& recorder, const DecodeOptions& decode,
                        const ModelConfig& config) {
  const TraceMeta& meta = recorder.meta;
  int64_t bytes = 2 * recorded_row_bytes(meta);
  if (meta.level < RecordLevel::summary) return bytes;
  const int64_t block_length = decode.block_length();
  const auto layers = static_cast<int64_t>(meta.layers.size());
  // Previous step, up to four reuse sources, step 1's queries: float32 [H, B, D] each; step 1's
  // logits [B, V] in their own type, four bytes at most; step 1's sets.
  bytes += layers * 7 * config.num_heads * block_length * config.head_dim * 4;
  bytes += block_length * config.vocab_size * 4;
  bytes += layers * static_cast<int64_t>(meta.kv_heads.size()) * meta.set_size * 4;
  // One head's keys and scores of a map, float32.
  bytes += meta.map_positions * (config.head_dim + 3 * block_length) * 4;
  return bytes;
}

/// The values of passes that are not recorded yet: the full queue, and the call that waits for it.
/// Copies from a device are in buffers whose sizes are powers of two.
int64_t late_memory(const RecorderOptions& recorder, const DecodeOptions& decode,
                    const LoadedModel& model, int64_t sequences) {
  const TraceMeta& meta = recorder.meta;
  if (meta.level < RecordLevel::summary || !records_late(model.device)) return 0;
  const ModelConfig& config = model.config;
  const int64_t rows = sequences * decode.block_length() * 4;  // of float32 at most
  const int64_t logits = rows * config.vocab_size;
  // Queries, keys, values, the policy's and the shadow's results; hidden states.
  const int64_t layer = rows * ((8 * config.num_heads + 2 * config.num_kv_heads) * config.head_dim +
                                config.hidden_size);
  const int64_t map = sequences * std::ssize(meta.map_heads) * decode.block_length() *
                      meta.map_positions * 2;  // float16
  const int64_t pass =
      logits + static_cast<int64_t>(meta.layers.size()) * layer + std::ssize(meta.map_layers) * map;
  const int64_t bytes = std::min((kMostLatePasses + 1) * pass,
                                 kMostLateBytes + kLatePieceBytes + std::max(logits, layer + map));
  return model.device.is_cpu() ? bytes : 2 * bytes;
}

/// klass's memory for a batch: a float64 distribution for each position of the block. A
/// bidirectional model also keeps those of all later positions, but decodes one sequence at a time.
int64_t klass_history(const std::vector<DecodeRequest>& batch, const DecodeOptions& decode,
                      const ModelConfig& config) {
  if (!strategy_entry(decode.unmasking).remembers || decode.autoregressive()) return 0;
  int64_t positions = std::ssize(batch) * decode.block_length();
  if (decode.bidirectional) {
    positions = 0;
    for (const DecodeRequest& request : batch) {
      const auto length = static_cast<int64_t>(request.prompt.size());
      positions = std::max(positions, generated_positions(length, request.gen_length, decode));
    }
  }
  return positions * config.vocab_size * static_cast<int64_t>(sizeof(double));
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
  return strategy_entry(decode.unmasking).second_look ||
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
  meta.num_layers = config.num_layers;
  meta.num_heads = config.num_heads;
  meta.num_kv_heads = config.num_kv_heads;
  meta.head_dim = config.head_dim;
  meta.hidden_size = config.hidden_size;
  meta.vocab_size = config.vocab_size;
  meta.mask_token_id = decode.mask_token_id;
  meta.logit_shift = decode.autoregressive() ? 1 : config.logit_shift;
  meta.bidirectional = decode.bidirectional;
  meta.softmax_scale = 1.0 / std::sqrt(static_cast<double>(config.head_dim));
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
  }
  meta.model_json = model.model_json();
  options.filter = {index_filter(flags.steps, "--steps", 1),
                    index_filter(flags.blocks, "--blocks", 0),
                    index_filter(flags.sequences, "--sequences", 0)};
  read_maps(flags.maps, longest + (decode.bidirectional ? decode.block_length() : 0), options);
  options.every_prediction =
      flags.predictions == "all" || decode.autoregressive() || decode.drafted;
  options.exact_known = policy.name() == "exact" || decode.shadow;
  options.autoregressive = decode.autoregressive();
  return options;
}

CaptureCost capture_cost(const RecorderOptions& recorder, const DecodeOptions& decode,
                         const std::vector<RunPrompt>& prompts, int64_t batch_size,
                         const LoadedModel& model, const ModelConfig* beside) {
  const TraceMeta& meta = recorder.meta;
  CaptureCost cost;
  cost.file_bytes = file_bytes(meta, longest_trace(recorder, decode, prompts));
  const int64_t sequences = std::min<int64_t>(batch_size, static_cast<int64_t>(prompts.size()));
  const ModelConfig& config = model.config;
  int64_t kept_weights = 0;
  for (size_t first = 0; first < prompts.size(); first += static_cast<size_t>(batch_size)) {
    const std::vector<DecodeRequest> batch = batch_requests(prompts, first, batch_size);
    const KvCacheShape shape = cache_shape(config, batch, decode);
    int64_t caches = KvCache::size_bytes(shape, model.dtype);
    if (beside != nullptr) {
      caches += KvCache::size_bytes(cache_shape(*beside, batch, decode), model.dtype);
    }
    cost.kv_cache_bytes = std::max(cost.kv_cache_bytes, caches);
    cost.history_bytes = std::max(cost.history_bytes, klass_history(batch, decode, config));
    const int64_t weights = std::ssize(batch) * config.num_heads * decode.block_length() *
                            shape.capacity * static_cast<int64_t>(sizeof(float));
    kept_weights = std::max(kept_weights, std::min(weights, kMostKeptWeightBytes));
  }
  if (meta.level < RecordLevel::sets) kept_weights = 0;
  cost.recorder_bytes = sequences * recorder_memory(recorder, decode, config) + kept_weights +
                        late_memory(recorder, decode, model, sequences);
  return cost;
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

int64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  int64_t kibibytes = 0;
  while (file >> name >> kibibytes) {
    if (name == "MemAvailable:") return kibibytes * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0;
}

std::string memory_text(const CaptureCost& cost) {
  const auto part = [](const char* name, int64_t bytes) {
    return fmt::format("{} {}", name, format_bytes(static_cast<double>(bytes)));
  };
  std::string text =
      part("KV cache", cost.kv_cache_bytes) + ", " + part("recorder", cost.recorder_bytes);
  if (cost.history_bytes > 0) text += ", " + part("klass's history", cost.history_bytes);
  return text;
}

void check_memory(const CaptureCost& cost, int64_t weights, int64_t available,
                  const std::string& whose) {
  const int64_t wanted = cost.kv_cache_bytes + cost.recorder_bytes + cost.history_bytes;
  if (available <= 0 || wanted <= available) return;
  throw Error(fmt::format(
      "capture: {}: expected at most the {} that are free, got {} (in addition to weights of {}). "
      "HINT: use a smaller --batch-size, --gen-length or --set-size, fewer --layers, or "
      "--no-space-check",
      whose, format_bytes(static_cast<double>(available)), memory_text(cost),
      format_bytes(static_cast<double>(weights))));
}

void check_memory_of(at::Device device, const CaptureCost& cost, int64_t weights) {
  if (device.is_cpu()) return check_memory(cost, weights, available_memory());
  CaptureCost there;
  there.kv_cache_bytes = cost.kv_cache_bytes;
  check_memory(there, weights, free_device_memory(device),
               fmt::format("memory of {}", device.str()));
  CaptureCost here = cost;
  here.kv_cache_bytes = 0;
  check_memory(here, 0, available_memory());
}

void check_free_space(const std::string& path, int64_t bytes) {
  std::error_code error;
  std::filesystem::path folder = std::filesystem::absolute(path, error).parent_path();
  const auto space = std::filesystem::space(folder, error);
  if (error) return;  // the writer will report what is wrong with the folder
  if (static_cast<uint64_t>(bytes) > space.available) {
    throw TraceError(fmt::format(
        "{}: the trace can take up to {}, but its file system has {} free. HINT: record less "
        "(--record, --layers, --heads, --steps, --blocks), or use --no-space-check if blocks end "
        "early",
        path, format_bytes(static_cast<double>(bytes)),
        format_bytes(static_cast<double>(space.available))));
  }
}

}  // namespace blockscope
