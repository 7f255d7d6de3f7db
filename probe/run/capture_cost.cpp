#include "probe/run/capture_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <system_error>

#include "command_line/progress.h"
#include "decode_record/base/error.h"
#include "decode_record/frames/decode_record.h"
#include "decode_record/schema/trace_layout.h"
#include "probe/decode/decode_observer.h"
#include "probe/decode/kv_cache.h"
#include "probe/record/late_recorder.h"
#include "probe/run/device_option.h"
#include "probe/strategies/strategy_table.h"

namespace blockscope {
namespace {

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

/// Whether steps may write positions that earlier steps wrote.
bool rewrites(const DecodeOptions& decode) {
  if (decode.autoregressive()) return false;
  const StrategyEntry& entry = strategy_entry(decode.unmasking);
  return entry.edit || entry.canvas || entry.second_look;
}

/// The trace of a run whose blocks all take every step and decide one token at a time.
TraceExtent longest_trace(const RecorderOptions& recorder, const DecodeOptions& decode,
                          const std::vector<RunPrompt>& prompts) {
  constexpr int64_t kNameBytes = 64;  // name, answer and metric of a prompt
  const TraceMeta& meta = recorder.meta;
  const int64_t block_length = decode.block_length();
  const int64_t steps = decode.autoregressive() ? 1 : forecast_steps(decode.unmasking);
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
    const int64_t storing = decode.bidirectional ? 0 : 1;  // the prefill, then one commit per block
    int64_t rows = storing;
    for (int64_t block = first; block < first + blocks; ++block) {
      rows += steps + storing;
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
    extent.length(Axis::delta) += rewrites(decode) ? blocks * steps * block_length : generated;
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
  return std::min((kMostLatePasses + 1) * pass,
                  kMostLateBytes + kLatePieceBytes + std::max(logits, layer + map));
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

}  // namespace

CaptureCost capture_cost(const RecorderOptions& recorder, const DecodeOptions& decode,
                         const std::vector<RunPrompt>& prompts, int64_t batch_size,
                         const LoadedModel& model, const ModelConfig* other) {
  const TraceMeta& meta = recorder.meta;
  CaptureCost cost;
  cost.file_bytes = file_bytes(meta, longest_trace(recorder, decode, prompts));
  if (!decode.autoregressive() && most_steps(decode.unmasking) > forecast_steps(decode.unmasking)) {
    cost.forecast_steps = forecast_steps(decode.unmasking);
  }
  const int64_t sequences = std::min<int64_t>(batch_size, static_cast<int64_t>(prompts.size()));
  const ModelConfig& config = model.config;
  int64_t kept_weights = 0;
  for (size_t first = 0; first < prompts.size(); first += static_cast<size_t>(batch_size)) {
    const std::vector<DecodeRequest> batch = batch_requests(prompts, first, batch_size);
    const KvCacheShape shape = cache_shape(config, batch, decode);
    int64_t caches = KvCache::size_bytes(shape, model.dtype);
    if (other != nullptr) {
      caches += KvCache::size_bytes(cache_shape(*other, batch, decode), model.dtype);
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

std::string size_text(const CaptureCost& cost) {
  const std::string size = format_bytes(static_cast<double>(cost.file_bytes));
  if (cost.forecast_steps == 0) return "at most " + size;
  return fmt::format("about {}, more if blocks take over {} steps", size, cost.forecast_steps);
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
        "{}: the trace can take {}, but its file system has {} free. HINT: record less "
        "(--record, --layers, --heads, --steps, --blocks), or use --no-space-check if blocks end "
        "early",
        path, format_bytes(static_cast<double>(bytes)),
        format_bytes(static_cast<double>(space.available))));
  }
}

}  // namespace blockscope
