#include "probe/decode/decoder.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "probe/decode/block_rows.h"
#include "probe/decode/canvas_decoder.h"
#include "probe/decode/decode_seams.h"
#include "probe/decode/kv_cache.h"
#include "probe/decode/pass_graphs.h"
#include "probe/decode/pass_plan.h"
#include "probe/decode/sequence_state.h"
#include "probe/decode/step_decision.h"
#include "probe/decode/sub_blocks.h"
#include "probe/model/device.h"
#include "probe/model/stopwatch.h"
#include "probe/policies/exact_policy.h"

namespace blockscope {
namespace {

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
        cache_(cache_shape(model.config(), requests, options), model.dtype(), model.device()),
        seams_({model.config().num_layers, block_length_, options.autoregressive(), options.shadow,
                options.block_cache()},
               policy, cache_, callbacks.observer),
        graphs_(model_, options.graphs) {
    for (const DecodeRequest& request : requests) {
      active_.push_back(initial_state(request, options));
    }
  }

  std::vector<DecodeOutcome> run() {
    const c10::InferenceMode guard;
    for (size_t slot = 0; slot < active_.size() && !interrupted_; ++slot) {
      prefill(static_cast<int64_t>(slot));
    }
    retire();  // a replay may hold no step at all, and a prefill may find the stop token
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
    const std::optional<NextToken> next = prefill(0);
    CommittedPrefix prefix;
    if (interrupted_) return prefix;
    prefix.length = cache_.length(0);
    if (next) prefix.next_token = *next;
    for (int64_t layer = 0; layer < model_.config().num_layers; ++layer) {
      prefix.key.push_back(cache_.key(layer).clone());
      prefix.value.push_back(cache_.value(layer).clone());
    }
    return prefix;
  }

 private:
  /// Returns the token that the first block begins with, where the prefill decides it.
  std::optional<NextToken> prefill(int64_t slot) {
    SequenceState& state = active_[static_cast<size_t>(slot)];
    const int64_t total = prefill_length(state, options_);
    // Only a block without prompt tokens of its own begins with one that the prefill predicts.
    const bool predicts = options_.sub_blocks() && total > 0 && total == state.prompt_length;
    StepDecision known;
    if (state.request->prefix != nullptr) {
      load_prefix(*state.request->prefix, slot, total);
      if (predicts) known.next = first_token(state, state.request->prefix->next_token);
      take_first_token(state, known, options_);
      return known.next;
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
      std::vector<StepDecision> decisions;
      int64_t elapsed = 0;
      {
        const Stopwatch watch(elapsed);
        const bool reads_last = predicts && begin + length == total;
        seams_.begin_prefill(context, slot, length, reads_last);
        const std::vector<int64_t> ids(state.tokens.begin() + begin,
                                       state.tokens.begin() + begin + length);
        const at::Tensor hidden =
            model_.forward(at::tensor(ids, at::kLong).unsqueeze(0),
                           at::arange(begin, begin + length, at::kLong).unsqueeze(0), seams_);
        seams_.end_pass();
        if (reads_last) {
          known.next = first_token(state, next_tokens(hidden).front());
          decisions = {known};
        }
      }
      report({context, length, begin, static_cast<double>(length), elapsed - seams_.observer_ns(),
              seams_.attention_ns(), std::move(decisions)});
      interrupted_ = callbacks_.interrupted && callbacks_.interrupted();
    }
    take_first_token(state, known, options_);
    return known.next;
  }

  /// A replay's, where there is one; none where the model predicts [MASK], which stays a mask.
  std::optional<NextToken> first_token(const SequenceState& state, const NextToken& own) const {
    if (state.request->replayed) return replayed_first_token(state, state.block);
    if (own.token == options_.mask_token_id) return std::nullopt;
    return own;
  }

  /// hidden [n, 1, hidden_size] -> the most probable tokens behind these rows.
  std::vector<NextToken> next_tokens(const at::Tensor& hidden) const {
    const std::vector<StreamId> streams(static_cast<size_t>(hidden.size(0)));
    std::vector<NextToken> result;
    for (const BlockPrediction& row : predict_tokens(model_.logits(hidden), {}, streams)) {
      result.push_back({row.top1.front(), row.top1_confidence.front()});
    }
    return result;
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
    const PassPlan plan = plan_block_pass(active_, options_, cache_, next_pass_++);
    const PassContext& context = plan.context;
    std::vector<StepDecision> decisions(active_.size());
    int64_t elapsed = 0;
    int64_t logits_observer_ns = 0;
    deciding_ns_ = 0;
    {
      const Stopwatch watch(elapsed);
      seams_.begin_blocks(context, plan.rows);
      const at::Tensor hidden = forward(plan).narrow(0, 0, std::ssize(active_));
      seams_.end_pass();
      if (!plan.denoising.empty()) {
        decide(plan, of_slots(hidden, plan.denoising), decisions, logits_observer_ns);
      }
      if (options_.sub_blocks() && !plan.committing.empty()) {
        const at::Tensor last = of_slots(hidden, plan.committing).narrow(1, block_length_ - 1, 1);
        begin_blocks(plan.committing, next_tokens(last), decisions);
      }
    }
    for (size_t slot = 0; slot < active_.size(); ++slot) {
      advance(active_[slot], context.sequences[slot], decisions[slot], options_);
    }
    const auto rows = static_cast<double>(plan.entries() * plan.rows.count);
    report({context,
            block_length_,
            0,
            rows,
            elapsed - seams_.observer_ns() - logits_observer_ns,
            seams_.attention_ns(),
            std::move(decisions),
            {},
            deciding_ns_});
  }

  at::Tensor forward(const PassPlan& plan) {
    if (is_repeatable(plan)) {
      if (const auto same = policy_.repeats()) return graphs_.repeatable(plan, *same, seams_);
    }
    return graphs_.single(plan, seams_);
  }

  /// Whether nothing is stored, and nobody is shown anything, within the pass.
  bool is_repeatable(const PassPlan& plan) const {
    return plan.committing.empty() && plan.context.commits.empty() && !options_.autoregressive() &&
           (callbacks_.observer == nullptr || !callbacks_.observer->looks_inside(plan.context));
  }

  at::Tensor of_slots(const at::Tensor& hidden, const std::vector<int64_t>& slots) const {
    if (slots.size() == active_.size()) return hidden;
    return hidden.index_select(0, index_on(slots, hidden.device()));
  }

  /// hidden [n, rows of the pass, hidden_size] -> logits [n, B, V].
  at::Tensor block_logits(const PassPlan& planned, const at::Tensor& hidden) const {
    at::Tensor predicting = hidden;
    if (options_.sub_blocks()) {
      predicting = hidden.index_select(1, index_on(predicting_rows(planned.rows), hidden.device()));
    }
    return among_block(
        model_.logits(predicting), 1,
        at::arange(planned.rows.first, planned.rows.first + planned.rows.count, at::kLong),
        block_length_, 0.0);
  }

  /// hidden [n, B, hidden_size] -> logits [R, V] of the masked positions.
  at::Tensor masked_logits(const PassPlan& planned, const at::Tensor& hidden) const {
    std::vector<int64_t> rows;
    for (size_t i = 0; i < planned.denoising.size(); ++i) {
      const auto slot = static_cast<size_t>(planned.denoising[i]);
      const std::vector<bool>& masked = planned.context.sequences[slot].masked;
      for (size_t p = 0; p < masked.size(); ++p) {
        if (masked[p])
          rows.push_back(static_cast<int64_t>(i) * block_length_ + static_cast<int64_t>(p));
      }
    }
    return model_.logits(hidden.flatten(0, 1).index_select(0, index_on(rows, hidden.device())));
  }

  void decide(const PassPlan& planned, const at::Tensor& hidden,
              std::vector<StepDecision>& decisions, int64_t& observer_ns) {
    const PassContext& context = planned.context;
    DecodeObserver* const observer = callbacks_.observer;
    const bool every = observer != nullptr && observer->wants_every_prediction();
    const bool masks =
        !every && !options_.sub_blocks() && masks_alone(options_) && model_.logits_stand_alone();
    const at::Tensor logits =
        masks ? masked_logits(planned, hidden) : block_logits(planned, hidden);
    std::vector<StepInput> inputs;
    for (const int64_t slot : planned.denoising) {
      const SequencePass& pass = context.sequences[static_cast<size_t>(slot)];
      SequenceState& state = active_[static_cast<size_t>(slot)];
      const bool replayed = !options_.autoregressive() && state.request->replayed;
      StepInput& input = inputs.emplace_back(StepInput{
          pass, state.tokens, state.prompt_length, pass.block * block_length_,
          replayed ? &state.request->replay[state.replay_cursor] : nullptr, state.memory});
      if (masks) input.predicted = pass.masked;
      if (options_.sub_blocks()) {
        input.predicted = predicted_positions(pass.masked, planned.rows);
        input.open = open_positions(pass.masked, options_.sub_block_length);
      }
    }
    if (observer != nullptr && observer->wants_logits()) {
      const Stopwatch watch(observer_ns);
      if (masks) {
        observer->on_masked_logits(context, planned.denoising, predicted_by(inputs), logits);
      } else {
        observer->on_logits(context, planned.denoising, predicted_logits(logits, inputs));
      }
    }
    const Stopwatch watch(deciding_ns_);
    std::vector<StepDecision> decided = decide_tokens(options_, logits, inputs);
    for (size_t i = 0; i < decided.size(); ++i) {
      decisions[static_cast<size_t>(planned.denoising[i])] = std::move(decided[i]);
    }
  }

  /// What the blocks behind the committed ones begin with.
  void begin_blocks(const std::vector<int64_t>& slots, const std::vector<NextToken>& own,
                    std::vector<StepDecision>& decisions) const {
    for (size_t i = 0; i < slots.size(); ++i) {
      const auto slot = static_cast<size_t>(slots[i]);
      const SequenceState& state = active_[slot];
      if (state.request->replayed) {
        decisions[slot].next = replayed_first_token(state, state.block + 1);
      } else if (own[i].token != options_.mask_token_id) {
        decisions[slot].next = own[i];
      }
    }
  }

  /// Takes finished sequences out of the batch, last slot first so that moves stay valid.
  void retire() {
    for (int64_t slot = std::ssize(active_) - 1; slot >= 0; --slot) {
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
  PassGraphs graphs_;                  // they read the model and the cache
  std::vector<SequenceState> active_;  // by slot
  std::vector<DecodeOutcome> finished_;
  int64_t deciding_ns_ = 0;  // of the current pass
  bool interrupted_ = false;
};

/// Requests that are decoded together. A bidirectional model, and the block cache, compute other
/// rows in every sequence, so each is a batch of its own.
std::vector<std::vector<DecodeRequest>> batches_of(const std::vector<DecodeRequest>& requests,
                                                   const DecodeOptions& options) {
  if (!options.bidirectional && !options.block_cache()) return {requests};
  std::vector<std::vector<DecodeRequest>> batches;
  for (const DecodeRequest& request : requests) batches.push_back({request});
  return batches;
}

}  // namespace

std::vector<DecodeOutcome> decode_batch(const BlockDiffusionModel& model, AttentionPolicy& policy,
                                        const DecodeOptions& options,
                                        const std::vector<DecodeRequest>& requests,
                                        int64_t& next_pass, const DecodeCallbacks& callbacks) {
  std::vector<DecodeOutcome> outcomes;
  bool interrupted = false;
  for (const std::vector<DecodeRequest>& batch : batches_of(requests, options)) {
    if (interrupted) {
      outcomes.emplace_back();
      outcomes.back().sequence = batch.front().sequence;
      outcomes.back().reason = FinishReason::interrupted;
      continue;
    }
    std::vector<DecodeOutcome> ended;
    if (options.bidirectional) {
      ended = {decode_canvas(model, policy, options, batch.front(), next_pass, callbacks)};
    } else {
      ended = BatchDecoder(model, policy, options, batch, next_pass, callbacks).run();
    }
    for (DecodeOutcome& outcome : ended) {
      interrupted = interrupted || outcome.reason == FinishReason::interrupted;
      outcomes.push_back(std::move(outcome));
    }
    interrupted = interrupted || (callbacks.interrupted && callbacks.interrupted());
  }
  return in_request_order(std::move(outcomes), requests);
}

std::vector<DecodeOutcome> in_request_order(std::vector<DecodeOutcome> ended,
                                            const std::vector<DecodeRequest>& requests) {
  std::vector<DecodeOutcome> ordered;
  for (const DecodeRequest& request : requests) {
    const auto found = std::find_if(ended.begin(), ended.end(), [&](const auto& outcome) {
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
