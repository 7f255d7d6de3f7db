#include "probe/decode/sequence_state.h"

#include <algorithm>

#include "probe/decode/canvas_decision.h"
#include "probe/decode/sub_blocks.h"
#include "probe/strategies/strategy_table.h"

namespace blockscope {
namespace {

int64_t start_of(const SequenceState& state, const DecodeOptions& options) {
  return block_start(state.prompt_length, state.block, options);
}

int64_t planned_steps(const SequenceState& state, const DecodeOptions& options) {
  const int64_t begin =
      block_start(state.prompt_length, first_block(state.prompt_length, options), options);
  const int64_t positions = std::ssize(state.tokens) - begin;
  if (options.autoregressive()) return positions;
  return positions / options.block_length() * options.unmasking.denoising_steps;
}

std::vector<int64_t> block_tokens(const SequenceState& state, const DecodeOptions& options) {
  const auto begin = state.tokens.begin() + start_of(state, options);
  return {begin, begin + options.block_length()};
}

int64_t masks_in_block(const SequenceState& state, const DecodeOptions& options) {
  const std::vector<int64_t> tokens = block_tokens(state, options);
  return std::count(tokens.begin(), tokens.end(), options.mask_token_id);
}

bool wants_commit(const SequenceState& state, int64_t masks_left, const DecodeOptions& options) {
  if (options.autoregressive()) return false;
  if (state.request->replayed) {
    const auto& replay = state.request->replay;
    return state.replay_cursor >= replay.size() || replay[state.replay_cursor].block != state.block;
  }
  if (options.canvas) return state.settled;
  if (strategy_entry(options.unmasking).edit) return state.step > 0 && state.memory.edit.ended;
  return masks_left == 0 || schedule_spent(options.unmasking, state.memory, state.step);
}

FinishReason finish_reason(const SequenceState& state, const DecodeOptions& options) {
  if (state.request->replayed) {
    return state.replay_cursor >= state.request->replay.size() ? FinishReason::replayed
                                                               : FinishReason::unfinished;
  }
  const auto generated = state.tokens.begin() + state.prompt_length;
  const bool stopped = std::any_of(generated, state.tokens.end(), [&](int64_t token) {
    return std::find(options.stop_ids.begin(), options.stop_ids.end(), token) !=
           options.stop_ids.end();
  });
  if (stopped) return FinishReason::stop;
  // In an autoregressive run, and after the last sub-block, the last token is never an input.
  const int64_t last = options.autoregressive() || options.sub_blocks() ? 1 : 0;
  const int64_t end = std::ssize(state.tokens) - last;
  return start_of(state, options) >= end ? FinishReason::length : FinishReason::unfinished;
}

void begin_next_block(SequenceState& state) {
  ++state.block;
  state.step = 0;
  state.last_input.clear();
  state.kept_masks = state.since_read = 0;
  state.unread.clear();
  state.sure_left = 0.0F;
  state.block_cached = state.settled = false;
  state.noise.clear();
  state.memory.canvas = {};
}

void put_noise(SequenceState& state, const Noise& drawn, int64_t block_start) {
  state.tokens[static_cast<size_t>(drawn.position)] = drawn.token;
  state.noise[static_cast<size_t>(drawn.position - block_start)] = true;
}

}  // namespace

SequenceState initial_state(const DecodeRequest& request, const DecodeOptions& options) {
  SequenceState state;
  state.request = &request;
  state.outcome.sequence = request.sequence;
  state.prompt_length = static_cast<int64_t>(request.prompt.size());
  const int64_t total =
      state.prompt_length + generated_positions(state.prompt_length, request.gen_length, options);
  state.tokens.assign(static_cast<size_t>(total), options.mask_token_id);
  std::copy(request.prompt.begin(), request.prompt.end(), state.tokens.begin());
  state.block = options.canvas ? 0 : prefill_length(state, options) / options.block_length();
  if (request.replayed && request.replay.empty()) state.outcome.reason = FinishReason::replayed;
  return state;
}

int64_t prefill_length(const SequenceState& state, const DecodeOptions& options) {
  if (options.autoregressive()) return state.prompt_length - 1;
  if (options.bidirectional) return 0;
  if (options.canvas) return state.prompt_length;
  return state.prompt_length / options.block_length() * options.block_length();
}

SequencePass plan_pass(SequenceState& state, const DecodeOptions& options, int64_t context_length) {
  const int64_t block_length = options.block_length();
  SequencePass pass;
  pass.sequence = state.outcome.sequence;
  pass.block = state.block;
  pass.block_start = start_of(state, options);
  pass.context_length = context_length;
  const std::vector<int64_t> input = block_tokens(state, options);
  pass.masked = state.noise;
  if (!options.canvas) {
    for (const int64_t token : input) pass.masked.push_back(token == options.mask_token_id);
  }
  pass.masks_left = std::count(pass.masked.begin(), pass.masked.end(), true);
  pass.unread = std::move(state.unread);
  pass.unread.resize(input.size());
  pass.changed_rows.resize(input.size());
  if (!state.last_input.empty()) {
    for (size_t i = 0; i < input.size(); ++i) {
      if (input[i] == state.last_input[i]) continue;
      ++pass.changed;
      pass.unread[i] = pass.changed_rows[i] = true;
    }
    pass.decided = pass.changed + state.kept_masks;
  }
  pass.since_read = state.since_read + pass.decided;
  pass.sure_left = state.sure_left;
  pass.kind = wants_commit(state, pass.masks_left, options) ? PassKind::commit : PassKind::denoise;
  if (pass.kind == PassKind::denoise) {
    pass.step = state.step + 1;
    pass.run_step = state.outcome.denoising_steps + 1;
    if (options.block_cache()) {
      const RowRange rows =
          rows_to_compute(pass.masked, options.sub_block_length, state.block_cached);
      if (rows.count < block_length) {
        pass.computed.assign(pass.masked.size(), false);
        std::fill_n(pass.computed.begin() + rows.first, rows.count, true);
      }
      state.block_cached = true;
    }
  }
  pass.planned_steps = planned_steps(state, options);
  pass.prompt_hash = state.request->prompt_hash;
  pass.prompt = &state.request->prompt;
  pass.regions = &state.request->regions;
  state.last_input = input;
  state.since_read = pass.since_read;
  state.unread = pass.unread;
  return pass;
}

void take_reads(SequenceState& state, int64_t rows) {
  if (rows == 0) return;
  state.since_read = 0;
  state.unread.clear();
}

StepInput step_input(SequenceState& state, const SequencePass& pass, const DecodeOptions& options) {
  const bool replayed = !options.autoregressive() && state.request->replayed;
  return {pass, state.tokens, state.prompt_length,
          replayed ? &state.request->replay[state.replay_cursor] : nullptr, state.memory};
}

namespace {

void take_decision(SequenceState& state, const SequencePass& pass, const StepDecision& decision,
                   const DecodeOptions& options) {
  const int64_t shift = options.autoregressive() ? 1 : 0;
  const auto begin = state.tokens.begin() + pass.block_start + shift;
  write_decision(decision, options.mask_token_id, {begin, begin + options.block_length()});
  if (decision.inserted.empty() && decision.deleted.empty()) return;
  std::vector<int64_t> block(begin, begin + options.block_length());
  move_tokens(block, decision.inserted, decision.deleted, options.mask_token_id);
  std::ranges::copy(block, begin);
}

/// Whether the sequence ends with this step, though its block may have masks. Sub-blocks: at the
/// first stop token without a mask before it. joint_threshold: the same, but only at a step that
/// wrote a stop token, like diffusers' `check_eos_finished`. A replay ends where the run did.
bool stops_within_block(const SequenceState& state, const StepDecision& decision,
                        const DecodeOptions& options) {
  if (options.autoregressive()) return false;
  if (state.request->replayed) {
    return options.commits_apart() && !options.canvas && state.request->replay_ends_within &&
           state.replay_cursor >= state.request->replay.size();
  }
  const auto stops = [&](int64_t p) {
    const int64_t token = decision.prediction.token[static_cast<size_t>(p)];
    return std::ranges::find(options.stop_ids, token) != options.stop_ids.end();
  };
  const bool looks = options.sub_blocks() || (strategy_entry(options.unmasking).stops_within &&
                                              std::ranges::any_of(decision.transferred, stops));
  return looks &&
         stop_reached(state.tokens, state.prompt_length, options.stop_ids, options.mask_token_id);
}

}  // namespace

void advance(SequenceState& state, const SequencePass& pass, const StepDecision& decision,
             const DecodeOptions& options) {
  if (pass.kind == PassKind::commit) {
    state.outcome.masks_left += pass.masks_left;
    begin_next_block(state);
    take_first_token(state, decision, options);
    state.outcome.reason = finish_reason(state, options);
    return;
  }
  ++state.step;
  state.kept_masks = decision.kept_masks;
  state.sure_left = decision.sure_left;
  ++state.replay_cursor;
  ++state.outcome.denoising_steps;
  take_decision(state, pass, decision, options);
  if (stops_within_block(state, decision, options)) {
    state.outcome.reason = state.request->replayed ? FinishReason::replayed : FinishReason::stop;
    return;
  }
  if (options.canvas) {
    for (const int64_t p : decision.transferred) state.noise[static_cast<size_t>(p)] = false;
    for (const Noise& drawn : decision.noise) put_noise(state, drawn, pass.block_start);
    state.settled = decision.ends_canvas;
  }
  if ((options.fuses_commits() || options.bidirectional) &&
      wants_commit(state, masks_in_block(state, options), options)) {
    // From here on the block counts as committed. The pass of the next step stores its keys, or a
    // canvas already holds them. If the sequence ends here, nobody reads them.
    const SequencePass commit = plan_pass(state, options, pass.context_length);
    if (options.fuses_commits()) state.uncommitted = commit;
    advance(state, commit, {}, options);
    return;
  }
  if (options.autoregressive()) {
    begin_next_block(state);
    state.outcome.reason = finish_reason(state, options);
  }
}

void take_first_token(SequenceState& state, const StepDecision& decision,
                      const DecodeOptions& options) {
  if (!decision.next) return;
  state.tokens[static_cast<size_t>(start_of(state, options))] = decision.next->token;
  if (state.request->replayed) {
    ++state.replay_cursor;
  } else if (stop_reached(state.tokens, state.prompt_length, options.stop_ids,
                          options.mask_token_id)) {
    state.outcome.reason = FinishReason::stop;
  }
}

std::vector<Noise> begin_canvas(SequenceState& state, const DecodeOptions& options,
                                int64_t vocab_size) {
  const int64_t begin = start_of(state, options);
  state.noise.assign(static_cast<size_t>(options.block_length()), false);
  std::vector<Noise> drawn;
  const auto& replay = state.request->replay;
  if (state.replay_cursor < replay.size() && replay[state.replay_cursor].step == 0) {
    drawn = noise_of(replay[state.replay_cursor]);
    ++state.replay_cursor;
  } else {
    const StreamId stream{state.request->prompt_hash, state.block, 0};
    for (int64_t p = 0; p < options.block_length(); ++p) {
      drawn.push_back({begin + p, random_token(options, stream, p, vocab_size)});
    }
  }
  for (const Noise& one : drawn) put_noise(state, one, begin);
  return drawn;
}

std::optional<NextToken> replayed_first_token(const SequenceState& state, int64_t block) {
  const auto& replay = state.request->replay;
  if (state.replay_cursor >= replay.size()) return std::nullopt;
  const ReplayStep& step = replay[state.replay_cursor];
  if (step.step != 0 || step.block != block) return std::nullopt;
  return NextToken{step.tokens.front(), step.confidence.front()};
}

}  // namespace blockscope
