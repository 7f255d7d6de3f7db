#include "probe/run/replay_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "decode_record/base/error.h"
#include "decode_record/read/trace_reader.h"
#include "decode_record/schema/reuse_rule.h"
#include "probe/caches/cache_table.h"
#include "probe/text/prompts.h"

namespace blockscope {
namespace {

/// A recorder that does not know the answer's length inserts each new canvas at the frame's end.
void take_new_canvas(const SequenceDelta& changes, int64_t prompt_length, ReplayStep& step) {
  const size_t transfers = changes.transfer_index.size();
  for (size_t i = 0; i < changes.insert_index.size(); ++i) {
    step.noise_positions.push_back(prompt_length + changes.insert_index[i] +
                                   static_cast<int64_t>(i));
    step.noise_tokens.push_back(changes.decoded_tokens.at(transfers + i));
  }
}

/// The reader lists the tokens of the transfers first, then those of the insertions.
void take_delta(const TraceReader& reader, int64_t row, const SequenceDelta& changes,
                int64_t prompt_length, ReplayStep& step) {
  const auto absolute = [&](const std::vector<int64_t>& positions, std::vector<int64_t>& into) {
    for (const int64_t position : positions) into.push_back(prompt_length + position);
  };
  const bool canvas = reader.info().meta.noise_canvas;
  if (canvas) take_new_canvas(changes, prompt_length, step);
  if (!canvas) absolute(changes.insert_index, step.inserted);
  absolute(changes.delete_index, step.deleted);
  const auto transfers = std::ssize(changes.transfer_index);
  const auto inserted = changes.decoded_tokens.begin() + transfers;
  for (auto token = inserted; token != changes.decoded_tokens.end(); ++token) {
    if (canvas || *token == reader.info().meta.mask_token_id) continue;
    throw PromptError(
        fmt::format("{}: row {}: inserts the token {}, but a run inserts masks only. HINT: a trace "
                    "of `blockscope import` may hold steps that no strategy here takes",
                    reader.info().path, row, *token));
  }
  for (size_t i = 0; i < changes.transfer_index.size(); ++i) {
    const int64_t position = prompt_length + changes.transfer_index[i];
    if (canvas && leaves_undecided(changes, i)) {
      step.noise_positions.push_back(position);
      step.noise_tokens.push_back(changes.decoded_tokens[i]);
      continue;
    }
    step.positions.push_back(position);
    step.tokens.push_back(changes.decoded_tokens[i]);
    step.confidence.push_back(i < changes.confidence.size() ? changes.confidence[i] : 0.0F);
  }
}

/// The denoising steps. Step 0 of a block is its first token, if a prefill or commit decided it, or
/// the random tokens of a canvas.
std::vector<ReplayStep> read_steps(const TraceReader& reader, int64_t sequence,
                                   int64_t prompt_length) {
  const TraceMeta& meta = reader.info().meta;
  std::vector<ReplayStep> steps;
  int64_t since_read = 0;
  int64_t rows_read = 0;
  for (const int64_t row : reader.rows_of(sequence)) {
    const StepColumns columns = reader.steps(row, 1);
    const bool denoising = columns.kind[0] == static_cast<uint8_t>(PassKind::denoise);
    ReplayStep step;
    step.block = columns.block[0];
    step.step = columns.step[0];
    const FrameDelta delta = reader.delta(row);
    for (const SequenceDelta& changes : delta.rows)
      take_delta(reader, row, changes, prompt_length, step);
    if (!columns.rows_read.empty()) {
      if (columns.step[0] > 1 && !steps.empty()) {
        steps.back().kept_masks =
            decided_between(columns.since_read[0], since_read, rows_read) - columns.changed[0];
      }
      since_read = columns.since_read[0];
      rows_read = columns.rows_read[0];
    }
    if (!denoising && meta.noise_canvas) {
      if (step.noise_positions.empty()) continue;
      step.block = (step.noise_positions.front() - prompt_length) / meta.block_length;
      step.step = 0;
    } else if (!denoising) {
      if (step.positions.empty()) continue;
      step.block = step.positions.front() / meta.block_length;
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

/// Whether the run's cache commits blocks in passes of their own. False for imported runs.
bool commits_in_own_passes(const TraceMeta& meta) {
  const auto run = nlohmann::json::parse(meta.run_json, nullptr, /*allow_exceptions=*/false);
  if (!run.is_object() || !run.contains("cache") || !run["cache"].is_string()) return false;
  const auto found =
      std::ranges::find(cache_table(), run["cache"].get<std::string>(), &CacheEntry::name);
  return found != cache_table().end() && found->model != CacheModel::bidirectional &&
         !found->fuses_commits;
}

}  // namespace

ReplaySource read_replay(const std::string& path, bool answers_alone) {
  const TraceReader reader(path);
  const TraceInfo& info = reader.info();
  if (info.meta.mask_token_id < 0 && !info.meta.noise_canvas && !answers_alone) {
    throw PromptError(
        fmt::format("{}: expected a block-diffusion trace to replay, got an "
                    "autoregressive one",
                    info.path));
  }
  const bool commits_apart = commits_in_own_passes(info.meta);
  ReplaySource source;
  source.block_length = info.meta.block_length;
  if (!info.meta.noise_canvas) source.mask_token_id = info.meta.mask_token_id;
  for (int64_t index = 0; index < info.num_sequences; ++index) {
    const SequenceInfo sequence = reader.sequence(index);
    if (sequence.aborted || sequence.finish_reason == FinishReason::unfinished) continue;
    RunPrompt prompt;
    prompt.name = sequence.name;
    if (!sequence.answer.empty()) {
      prompt.answers = {sequence.answer};
      prompt.metric = parse_metric(sequence.metric);
    }
    DecodeRequest& request = prompt.request;
    request.sequence = static_cast<int64_t>(source.prompts.size());
    request.prompt = sequence.prompt;
    request.gen_length = sequence.gen_length;
    if (!sequence.prompt_regions.empty()) {
      request.regions = {info.meta.regions, sequence.prompt_regions};
    }
    const std::vector<TokenId> ids(sequence.prompt.begin(), sequence.prompt.end());
    request.prompt_hash = prompt_hash(ids);
    request.replayed = true;
    request.replay = read_steps(reader, index, static_cast<int64_t>(sequence.prompt.size()));
    const std::vector<std::int64_t> rows = reader.rows_of(index);
    request.replay_ends_within =
        commits_apart && !rows.empty() &&
        reader.steps(rows.back(), 1).kind[0] == static_cast<uint8_t>(PassKind::denoise);
    for (const ReplayStep& step : request.replay) {
      for (const int64_t position : step.noise_positions) {
        request.gen_length =
            std::max(request.gen_length, position + 1 - std::ssize(sequence.prompt));
      }
    }
    source.prompts.push_back(std::move(prompt));
  }
  if (source.prompts.empty()) {
    throw PromptError(
        fmt::format("{}: expected at least one finished sequence to replay, got none", info.path));
  }
  return source;
}

}  // namespace blockscope
