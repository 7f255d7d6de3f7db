#include "probe/decode/decoder.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>

#include "probe/decode/canvas_decoder.h"
#include "probe/decode/decode_seams.h"
#include "probe/decode/kv_cache.h"
#include "probe/decode/step_decision.h"
#include "probe/model/stopwatch.h"
#include "probe/policies/exact_policy.h"

namespace blockscope {
namespace {

/// Where one sequence stands.
struct SequenceState {
  const DecodeRequest* request = nullptr;
  DecodeOutcome outcome;
  std::vector<int64_t> tokens;      // [total positions]
  std::vector<int64_t> last_input;  // [B] input of the block's previous step
  int64_t prompt_length = 0;
  int64_t block = 0;
  int64_t step = 0;  // denoising steps done in this block
  size_t replay_cursor = 0;
  ChoiceMemory memory;
};

class BatchDecoder {
 public:
  BatchDecoder(const BlockDiffusionModel& model, AttentionPolicy& policy,
               const DecodeOptions& options, const std::vector<DecodeRequest>& requests,
               int64_t& next_pass, const DecodeCallbacks& callbacks)
      : model_(model.for_longest_sequence(longest_sequence(requests, options))),
        policy_(policy),
        options_(options),
        block_length_(options.block_length()),
        callbacks_(callbacks),
        next_pass_(next_pass),
        cache_(cache_shape(model.config(), requests, options), model.dtype()),
        seams_({block_length_, options.autoregressive(), options.shadow}, policy, cache_,
               callbacks.observer) {
    for (const DecodeRequest& request : requests) active_.push_back(initial_state(request));
  }

  std::vector<DecodeOutcome> run() {
    const c10::InferenceMode guard;
    for (size_t slot = 0; slot < active_.size() && !interrupted_; ++slot) {
      prefill(static_cast<int64_t>(slot));
    }
    retire();  // a replay may hold no step at all
    while (!active_.empty() && !interrupted_) {
      block_pass();
      retire();
      interrupted_ = interrupted_ || (callbacks_.interrupted && callbacks_.interrupted());
    }
    for (SequenceState& state : active_) {
      state.outcome.reason = FinishReason::interrupted;
      finish(state);
    }
    return std::move(finished_);
  }

  /// The committed keys after the prefill of the only request.
  CommittedPrefix prefill_only() {
    const c10::InferenceMode guard;
    prefill(0);
    CommittedPrefix prefix;
    if (interrupted_) return prefix;
    prefix.length = cache_.length(0);
    for (int64_t layer = 0; layer < model_.config().num_layers; ++layer) {
      prefix.key.push_back(cache_.key(layer).clone());
      prefix.value.push_back(cache_.value(layer).clone());
    }
    return prefix;
  }

 private:
  SequenceState initial_state(const DecodeRequest& request) const {
    SequenceState state;
    state.request = &request;
    state.outcome.sequence = request.sequence;
    state.prompt_length = static_cast<int64_t>(request.prompt.size());
    const int64_t total = state.prompt_length +
                          generated_positions(state.prompt_length, request.gen_length, options_);
    state.tokens.assign(static_cast<size_t>(total), options_.mask_token_id);
    std::copy(request.prompt.begin(), request.prompt.end(), state.tokens.begin());
    state.block = prefill_length(state) / block_length_;
    return state;
  }

  /// Whole prompt blocks; autoregressive: all but the last prompt token, which is the first input.
  int64_t prefill_length(const SequenceState& state) const {
    if (options_.autoregressive()) return state.prompt_length - 1;
    return state.prompt_length / block_length_ * block_length_;
  }

  void prefill(int64_t slot) {
    const SequenceState& state = active_[static_cast<size_t>(slot)];
    const int64_t total = prefill_length(state);
    if (state.request->prefix != nullptr) {
      load_prefix(*state.request->prefix, slot, total);
      return;
    }
    const int64_t chunk =
        std::max<int64_t>(1, options_.prefill_chunk / block_length_) * block_length_;
    for (int64_t begin = 0; begin < total && !interrupted_; begin += chunk) {
      const int64_t length = std::min(chunk, total - begin);
      PassContext context{next_pass_++, {}};
      SequencePass& pass = context.sequences.emplace_back();
      pass.sequence = state.outcome.sequence;
      pass.kind = PassKind::prefill;
      pass.block = begin / block_length_;
      pass.block_start = begin;
      pass.context_length = begin;
      int64_t elapsed = 0;
      {
        const Stopwatch watch(elapsed);
        seams_.begin_prefill(context, slot, length);
        const std::vector<int64_t> ids(state.tokens.begin() + begin,
                                       state.tokens.begin() + begin + length);
        model_.forward(at::tensor(ids, at::kLong).unsqueeze(0),
                       at::arange(begin, begin + length, at::kLong).unsqueeze(0), seams_);
        seams_.end_pass();
      }
      report({context,
              length,
              begin,
              static_cast<double>(length),
              elapsed - seams_.observer_ns(),
              seams_.attention_ns(),
              {}});
      interrupted_ = callbacks_.interrupted && callbacks_.interrupted();
    }
  }

  void load_prefix(const CommittedPrefix& prefix, int64_t slot, int64_t length) {
    check_prefix(prefix, model_.config(), length);
    for (int64_t layer = 0; layer < model_.config().num_layers; ++layer) {
      const size_t index = static_cast<size_t>(layer);
      cache_.store(layer, slot, prefix.key[index], prefix.value[index]);
    }
    cache_.commit(slot, length);
  }

  /// One forward pass over every active sequence's block: denoising for some, commit for others.
  void block_pass() {
    PassContext context{next_pass_++, {}};
    std::vector<int64_t> ids;
    std::vector<int64_t> positions;
    std::vector<int64_t> denoising;
    for (size_t slot = 0; slot < active_.size(); ++slot) {
      const SequencePass pass = plan(active_[slot], static_cast<int64_t>(slot));
      if (pass.kind == PassKind::denoise) denoising.push_back(static_cast<int64_t>(slot));
      const int64_t begin = pass.block * block_length_;
      for (int64_t i = 0; i < block_length_; ++i) {
        ids.push_back(active_[slot].tokens[static_cast<size_t>(begin + i)]);
        positions.push_back(begin + i);
      }
      context.sequences.push_back(pass);
    }
    const std::vector<int64_t> shape{static_cast<int64_t>(active_.size()), block_length_};
    std::vector<StepDecision> decisions(active_.size());
    int64_t elapsed = 0;
    int64_t logits_observer_ns = 0;
    {
      const Stopwatch watch(elapsed);
      seams_.begin_blocks(context);
      at::Tensor hidden = model_.forward(at::tensor(ids, at::kLong).view(shape),
                                         at::tensor(positions, at::kLong).view(shape), seams_);
      seams_.end_pass();
      if (!denoising.empty()) {
        if (denoising.size() < active_.size()) {
          hidden = hidden.index_select(0, at::tensor(denoising, at::kLong));
        }
        const at::Tensor logits = model_.logits(hidden);
        if (callbacks_.observer != nullptr) {
          const Stopwatch observer_watch(logits_observer_ns);
          callbacks_.observer->on_logits(context, denoising, logits);
        }
        decide(context, denoising, logits, decisions);
      }
    }
    for (size_t slot = 0; slot < active_.size(); ++slot) {
      advance(active_[slot], context.sequences[slot], decisions[slot]);
    }
    const auto rows = static_cast<double>(static_cast<int64_t>(active_.size()) * block_length_);
    report({context, block_length_, 0, rows, elapsed - seams_.observer_ns() - logits_observer_ns,
            seams_.attention_ns(), std::move(decisions)});
  }

  SequencePass plan(SequenceState& state, int64_t slot) const {
    SequencePass pass;
    pass.sequence = state.outcome.sequence;
    pass.block = state.block;
    pass.block_start = state.block * block_length_;
    pass.context_length = cache_.length(slot);
    const auto begin = state.tokens.begin() + state.block * block_length_;
    const std::vector<int64_t> input(begin, begin + block_length_);
    for (const int64_t token : input) pass.masked.push_back(token == options_.mask_token_id);
    pass.masks_left = std::count(pass.masked.begin(), pass.masked.end(), true);
    if (!state.last_input.empty()) {
      for (size_t i = 0; i < input.size(); ++i) pass.changed += input[i] != state.last_input[i];
    }
    pass.kind = wants_commit(state, pass.masks_left) ? PassKind::commit : PassKind::denoise;
    if (pass.kind == PassKind::denoise) {
      pass.step = state.step + 1;
      pass.run_step = state.outcome.denoising_steps + 1;
    }
    pass.planned_steps = planned_steps(state);
    pass.prompt_hash = state.request->prompt_hash;
    state.last_input = input;
    return pass;
  }

  int64_t planned_steps(const SequenceState& state) const {
    const auto positions = static_cast<int64_t>(state.tokens.size()) - prefill_length(state);
    if (options_.autoregressive()) return positions - 1;  // the last token is never an input
    return positions / block_length_ * options_.unmasking.denoising_steps;
  }

  bool wants_commit(const SequenceState& state, int64_t masks_left) const {
    if (options_.autoregressive()) return false;
    if (state.request->replayed) {
      const auto& replay = state.request->replay;
      return state.replay_cursor >= replay.size() ||
             replay[state.replay_cursor].block != state.block;
    }
    return masks_left == 0 || state.step >= options_.unmasking.denoising_steps;
  }

  void decide(const PassContext& context, const std::vector<int64_t>& denoising,
              const at::Tensor& logits, std::vector<StepDecision>& decisions) {
    std::vector<StepInput> inputs;
    for (const int64_t slot : denoising) {
      SequenceState& state = active_[static_cast<size_t>(slot)];
      const bool replayed = !options_.autoregressive() && state.request->replayed;
      inputs.push_back({context.sequences[static_cast<size_t>(slot)], state.tokens,
                        state.prompt_length, state.block * block_length_,
                        replayed ? &state.request->replay[state.replay_cursor] : nullptr,
                        state.memory});
    }
    std::vector<StepDecision> decided = decide_tokens(options_, logits, inputs);
    for (size_t i = 0; i < denoising.size(); ++i) {
      decisions[static_cast<size_t>(denoising[i])] = std::move(decided[i]);
    }
  }

  void advance(SequenceState& state, const SequencePass& pass, const StepDecision& decision) {
    if (pass.kind == PassKind::commit) {
      state.outcome.masks_left += pass.masks_left;
      ++state.block;
      state.step = 0;
      state.last_input.clear();
      state.outcome.reason = finish_reason(state);
      return;
    }
    ++state.step;
    ++state.replay_cursor;
    ++state.outcome.denoising_steps;
    const int64_t shift = options_.autoregressive() ? 1 : 0;
    for (const int64_t p : decision.transferred) {
      state.tokens[static_cast<size_t>(state.block * block_length_ + p + shift)] =
          decision.prediction.token[static_cast<size_t>(p)];
    }
    if (options_.autoregressive()) {
      ++state.block;
      state.step = 0;
      state.last_input.clear();
      state.outcome.reason = finish_reason(state);
    }
  }

  FinishReason finish_reason(const SequenceState& state) const {
    if (state.request->replayed) {
      return state.replay_cursor >= state.request->replay.size() ? FinishReason::replayed
                                                                 : FinishReason::unfinished;
    }
    const auto generated = state.tokens.begin() + state.prompt_length;
    const bool stopped = std::any_of(generated, state.tokens.end(), [&](int64_t token) {
      return std::find(options_.stop_ids.begin(), options_.stop_ids.end(), token) !=
             options_.stop_ids.end();
    });
    if (stopped) return FinishReason::stop;
    const int64_t last = options_.autoregressive() ? 1 : 0;  // the last token is never an input
    const int64_t end = static_cast<int64_t>(state.tokens.size()) - last;
    return state.block * block_length_ >= end ? FinishReason::length : FinishReason::unfinished;
  }

  /// Takes finished sequences out of the batch, last slot first so that moves stay valid.
  void retire() {
    for (int64_t slot = static_cast<int64_t>(active_.size()) - 1; slot >= 0; --slot) {
      SequenceState& state = active_[static_cast<size_t>(slot)];
      if (state.request->replayed && state.request->replay.empty()) {
        state.outcome.reason = FinishReason::replayed;
      }
      if (state.outcome.reason == FinishReason::unfinished) continue;
      finish(state);
      cache_.remove(slot);
      policy_.remove(slot);
      if (callbacks_.observer != nullptr) callbacks_.observer->on_remove(slot);
      if (static_cast<size_t>(slot) + 1 < active_.size()) state = std::move(active_.back());
      active_.pop_back();
    }
  }

  void finish(SequenceState& state) {
    state.outcome.generated.assign(state.tokens.begin() + state.prompt_length, state.tokens.end());
    if (callbacks_.on_finished) callbacks_.on_finished(state.outcome);
    finished_.push_back(std::move(state.outcome));
  }

  void report(const PassResult& result) {
    if (callbacks_.observer != nullptr) callbacks_.observer->on_pass(result);
  }

  const BlockDiffusionModel model_;
  AttentionPolicy& policy_;
  const DecodeOptions& options_;
  const int64_t block_length_;
  const DecodeCallbacks& callbacks_;
  int64_t& next_pass_;
  KvCache cache_;
  DecodeSeams seams_;
  std::vector<SequenceState> active_;  // by slot
  std::vector<DecodeOutcome> finished_;
  bool interrupted_ = false;
};

}  // namespace

std::vector<DecodeOutcome> decode_batch(const BlockDiffusionModel& model, AttentionPolicy& policy,
                                        const DecodeOptions& options,
                                        const std::vector<DecodeRequest>& requests,
                                        int64_t& next_pass, const DecodeCallbacks& callbacks) {
  if (options.bidirectional) {
    std::vector<DecodeOutcome> outcomes;
    for (const DecodeRequest& request : requests) {
      const bool stop = callbacks.interrupted && callbacks.interrupted();
      if (!stop) {
        outcomes.push_back(decode_canvas(model, policy, options, request, next_pass, callbacks));
        continue;
      }
      outcomes.emplace_back();
      outcomes.back().sequence = request.sequence;
      outcomes.back().reason = FinishReason::interrupted;
    }
    return outcomes;
  }
  std::vector<DecodeOutcome> outcomes =
      BatchDecoder(model, policy, options, requests, next_pass, callbacks).run();
  // Sequences end in any order; the caller gets them in the order of the requests.
  std::vector<DecodeOutcome> ordered;
  for (const DecodeRequest& request : requests) {
    const auto found = std::find_if(outcomes.begin(), outcomes.end(), [&](const auto& outcome) {
      return outcome.sequence == request.sequence;
    });
    ordered.push_back(std::move(*found));
  }
  return ordered;
}

CommittedPrefix prefill_prompt(const BlockDiffusionModel& model, const DecodeOptions& options,
                               const DecodeRequest& request,
                               const std::function<bool()>& interrupted) {
  const auto policy = make_exact_policy();  // prefill is exact under every policy
  int64_t pass = 0;
  DecodeCallbacks callbacks;
  callbacks.interrupted = interrupted;
  const std::vector<DecodeRequest> requests{request};
  return BatchDecoder(model, *policy, options, requests, pass, callbacks).prefill_only();
}

}  // namespace blockscope
