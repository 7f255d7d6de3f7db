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
#include "probe/decode/noise_canvas_decoder.h"
#include "probe/decode/pass_graphs.h"
#include "probe/decode/pass_plan.h"
#include "probe/decode/sequence_state.h"
#include "probe/decode/slot_loop.h"
#include "probe/decode/step_decision.h"
#include "probe/decode/sub_blocks.h"
#include "probe/model/device.h"
#include "probe/model/stopwatch.h"
#include "probe/policies/exact_policy.h"

namespace blockscope {
namespace {

class BlockLoop final : public SlotLoop<SequenceState> {
 public:
  BlockLoop(const BlockDiffusionModel& model, AttentionPolicy& policy, const DecodeOptions& options,
            const std::vector<DecodeRequest>& requests, int64_t& next_pass,
            const DecodeCallbacks& callbacks)
      : SlotLoop(next_pass, callbacks),
        model_(model.for_longest_sequence(longest_sequence(requests, options))),
        policy_(policy),
        options_(options),
        block_length_(options.block_length()),
        cache_(cache_shape(model.config(), requests, options), model.dtype(), model.device()),
        seams_(options, policy, cache_, watcher_),
        graphs_(model_, options.graphs) {
    for (const DecodeRequest& request : requests) {
      active_.push_back(initial_state(request, options));
    }
  }

  /// The committed keys after the prefill of the only request.
  CommittedPrefix prefill_only() {
    const c10::InferenceMode guard;
    const std::optional<NextToken> next = prefilled(0);
    if (interrupted()) return {};
    CommittedPrefix prefix = copied_prefix(cache_);
    if (next) prefix.next_token = *next;
    return prefix;
  }

 private:
  void prefill(int64_t slot) override {
    StepDecision known;
    known.next = prefilled(slot);
    take_first_token(active(slot), known, options_);
  }

  /// The token that the first block begins with, where the prefill decides it.
  std::optional<NextToken> prefilled(int64_t slot) {
    SequenceState& state = active(slot);
    const int64_t total = prefill_length(state, options_);
    // The prefill predicts a block's first token only if the block holds no prompt tokens.
    const bool predicts = options_.sub_blocks() && total > 0 && total == state.prompt_length;
    std::optional<NextToken> next;
    if (state.request->prefix != nullptr) {
      load_prefix(*state.request->prefix, model_.config(), slot, total, cache_);
      if (predicts) next = first_token(state, state.request->prefix->next_token);
      return next;
    }
    const int64_t chunk =
        std::max<int64_t>(1, options_.prefill_chunk / block_length_) * block_length_;
    prefill_chunks(slot, total, chunk,
                   [&](PassContext& context, PassResult& result, const at::Tensor& ids,
                       const at::Tensor& positions) {
                     context.sequences.front().block = result.start / block_length_;
                     const bool reads_last = predicts && result.start + result.length == total;
                     seams_.begin_prefill(context, slot, result.length, reads_last);
                     const at::Tensor hidden = model_.forward(ids, positions, seams_);
                     seams_.end_pass();
                     result.attention_ns = seams_.attention_ns();
                     if (!reads_last) return;
                     next = first_token(state, next_tokens(hidden).front());
                     result.decisions.emplace_back().next = next;
                   });
    return next;
  }

  /// The replay's token, if there is a replay. None if the model predicts [MASK]: a mask stays one.
  std::optional<NextToken> first_token(const SequenceState& state, const NextToken& own) const {
    if (state.request->replayed) return replayed_first_token(state, state.block);
    if (own.token == options_.mask_token_id) return std::nullopt;
    return own;
  }

  /// hidden [n, 1, hidden_size] -> the most probable token after each row.
  std::vector<NextToken> next_tokens(const at::Tensor& hidden) const {
    const std::vector<StreamId> streams(static_cast<size_t>(hidden.size(0)));
    std::vector<NextToken> result;
    for (const BlockPrediction& row : predict_tokens(model_.logits(hidden), {}, streams)) {
      result.push_back({row.top1.front(), row.top1_confidence.front()});
    }
    return result;
  }

  /// One forward pass over every active sequence's block: denoising for some, commit for others.
  void step() override {
    const PassPlan plan = plan_block_pass(active_, options_, cache_, next_pass_++);
    PassResult result{plan.context, block_length_, 0,
                      static_cast<double>(plan.entries() * plan.rows.count)};
    result.decisions.resize(active_.size());
    {
      const UnwatchedStopwatch watch(result.pass_ns, watcher_);
      seams_.begin_blocks(plan.context, plan.rows);
      const at::Tensor hidden = forward(plan).narrow(0, 0, std::ssize(active_));
      seams_.end_pass();
      if (!plan.denoising.empty()) decide(plan, of_slots(hidden, plan.denoising), result);
      if (options_.sub_blocks() && !plan.committing.empty()) {
        const at::Tensor last = of_slots(hidden, plan.committing).narrow(1, block_length_ - 1, 1);
        begin_blocks(plan.committing, next_tokens(last), result.decisions);
      }
    }
    result.attention_ns = seams_.attention_ns();
    for (size_t slot = 0; slot < active_.size(); ++slot) {
      result.rows_read.push_back(policy_.rows_read(static_cast<int64_t>(slot), plan.rows.count));
      take_reads(active_[slot], result.rows_read.back());
      advance(active_[slot], plan.context.sequences[slot], result.decisions[slot], options_);
    }
    report(result);
  }

  at::Tensor forward(const PassPlan& plan) {
    const std::vector<int64_t> shape{plan.entries(), plan.rows.count};
    const at::Tensor ids = at::tensor(plan.ids, at::kLong).view(shape);
    const at::Tensor positions = at::tensor(plan.positions, at::kLong).view(shape);
    if (stores_nothing(plan)) {
      if (auto same = policy_.repeats()) {
        same->push_back(plan.rows.first);
        for (const SequencePass& pass : plan.context.sequences) {
          same->push_back(pass.context_length);
        }
        return graphs_.repeatable(ids, positions, *same, seams_);
      }
    }
    return model_.forward(ids, positions, seams_);
  }

  bool stores_nothing(const PassPlan& plan) const {
    return plan.committing.empty() && plan.context.commits.empty() && !options_.autoregressive();
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

  void decide(const PassPlan& planned, const at::Tensor& hidden, PassResult& result) {
    const bool masks = !options_.sub_blocks() && masks_alone(options_, model_, watcher_);
    const at::Tensor logits =
        masks ? masked_logits(planned, hidden) : block_logits(planned, hidden);
    std::vector<StepInput> inputs;
    for (const int64_t slot : planned.denoising) {
      const SequencePass& pass = planned.context.sequences[static_cast<size_t>(slot)];
      inputs.push_back(step_input(active(slot), pass, options_));
      StepInput& input = inputs.back();
      if (masks) input.predicted = pass.masked;
      if (options_.sub_blocks()) {
        input.predicted = predicted_positions(pass.masked, planned.rows);
        input.open = open_positions(pass.masked, options_.sub_block_length);
      }
    }
    show_logits(watcher_, planned.context, planned.denoising, inputs, logits);
    const Stopwatch watch(result.deciding_ns);
    std::vector<StepDecision> decided = decide_tokens(options_, logits, inputs);
    for (size_t i = 0; i < decided.size(); ++i) {
      result.decisions[static_cast<size_t>(planned.denoising[i])] = std::move(decided[i]);
    }
  }

  /// Decides the first tokens of the blocks after the committed ones.
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

  void leave(int64_t slot) override {
    cache_.remove(slot);
    policy_.remove(slot);
  }

  const BlockDiffusionModel model_;
  AttentionPolicy& policy_;
  const DecodeOptions& options_;
  const int64_t block_length_;
  KvCache cache_;
  DecodeSeams seams_;
  PassGraphs graphs_;  // they read the model and the cache
};

/// Requests that are decoded together. A bidirectional model and the block cache compute different
/// rows in each sequence, and canvases end at different steps, so each request is its own batch.
std::vector<std::vector<DecodeRequest>> batches_of(const std::vector<DecodeRequest>& requests,
                                                   const DecodeOptions& options) {
  if (!options.bidirectional && !options.canvas && !options.block_cache()) return {requests};
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
    std::vector<DecodeOutcome> ended =
        options.bidirectional
            ? decode_canvas(model, policy, options, batch.front(), next_pass, callbacks)
        : options.canvas
            ? decode_noise_canvas(model, policy, options, batch.front(), next_pass, callbacks)
            : BlockLoop(model, policy, options, batch, next_pass, callbacks).run();
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
  return BlockLoop(model, *policy, options, requests, pass, callbacks).prefill_only();
}

}  // namespace blockscope
