#include "probe/draft/draft_decoder.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "probe/draft/draft_seams.h"
#include "probe/draft/draft_verdict.h"
#include "probe/draft/round_state.h"
#include "probe/model/device.h"
#include "probe/model/stopwatch.h"

namespace blockscope {
namespace {

KvCacheShape shape_of(const ModelConfig& config, int64_t slots, int64_t capacity) {
  return {config.num_layers, slots, config.num_kv_heads, capacity, config.head_dim};
}

/// What a draft made of the blocks of all active sequences.
struct Drafted {
  std::vector<std::vector<int64_t>> tokens;    // [S][B - 1], ids of the target
  std::vector<std::vector<float>> confidence;  // [S][B - 1]
  at::Tensor logits;                           // [S, B - 1, draft vocabulary]
  int64_t ns = 0;
};

class DraftedBatch {
 public:
  DraftedBatch(const DraftedRun& run, const std::vector<DecodeRequest>& requests,
               int64_t& next_pass, const DecodeCallbacks& callbacks)
      : run_(run),
        next_pass_(next_pass),
        callbacks_(callbacks),
        block_(run.block_length),
        capacity_(longest_end(requests) + block_),
        target_(run.target.for_longest_sequence(capacity_)),
        draft_(run.draft.for_longest_sequence(capacity_)),
        target_cache_(shape_of(target_.config(), std::ssize(requests), capacity_), target_.dtype(),
                      target_.device()),
        context_(shape_of(draft_.config(), std::ssize(requests), capacity_), target_.dtype(),
                 target_.device()),
        target_seams_(target_cache_, draft_.draft().target_layers, target_.config().num_layers,
                      records_target() ? callbacks.observer : nullptr),
        draft_seams_(context_, records_target() ? nullptr : callbacks.observer) {
    for (const DecodeRequest& request : requests) active_.emplace_back(request, mask());
  }

  /// In the order in which they end.
  std::vector<DecodeOutcome> decode() {
    const c10::InferenceMode guard;
    for (int64_t slot = 0; slot < std::ssize(active_) && !interrupted_; ++slot) {
      if (!active_[static_cast<size_t>(slot)].finished()) prefill(slot);
    }
    if (!interrupted_) retire();
    while (!active_.empty() && !interrupted_) {
      interrupted_ = callbacks_.interrupted && callbacks_.interrupted();
      if (interrupted_) break;
      round();
      retire();
    }
    for (RoundState& state : active_) {
      state.outcome.reason = FinishReason::interrupted;
      finish(state);
    }
    return std::move(finished_);
  }

 private:
  bool records_target() const { return run_.recorded == RecordedModel::target; }
  int64_t mask() const { return draft_.draft().mask_token_id; }

  SequencePass pass_of(const RoundState& state, PassKind kind, int64_t block_start) const {
    SequencePass pass;
    pass.sequence = state.request->sequence;
    pass.kind = kind;
    pass.block = state.round;
    pass.block_start = block_start;
    pass.context_length = block_start;
    pass.prompt_hash = state.request->prompt_hash;
    return pass;
  }

  /// A round's passes of all active sequences.
  PassContext round_context(PassKind kind) {
    PassContext context{next_pass_++, {}};
    for (const RoundState& state : active_) {
      SequencePass pass = pass_of(state, kind, state.start());
      if (kind == PassKind::denoise) {
        pass.step = 1;
        pass.masks_left = block_ - 1;
        pass.masked.assign(static_cast<size_t>(block_), true);
        pass.masked.front() = false;
        pass.run_step = state.round + 1;
      }
      context.sequences.push_back(std::move(pass));
    }
    return context;
  }

  /// [S, count]: `count` positions of every active sequence from its block's start on.
  at::Tensor block_positions(int64_t count) const {
    std::vector<int64_t> positions;
    for (const RoundState& state : active_) {
      for (int64_t p = 0; p < count; ++p) positions.push_back(state.start() + p);
    }
    return at::tensor(positions, at::kLong).view({-1, count});
  }

  /// What of the pass's keys and hidden states [S, T, hidden_size] belongs to tokens that stay: the
  /// first counts[s] of the sequences from `slot` on, which stand at `positions` [S, T].
  void keep(const PassContext& context, int64_t slot, const at::Tensor& hidden,
            const at::Tensor& positions, const std::vector<int64_t>& counts) {
    const int64_t most = *std::max_element(counts.begin(), counts.end());
    for (size_t s = 0; s < counts.size() && records_target() && watched(); ++s) {
      show_target_keys(context.sequences[s], slot + static_cast<int64_t>(s), counts[s]);
    }
    const at::Tensor features =
        draft_.context_features(target_seams_.taps().side_by_side(hidden).narrow(1, 0, most));
    const RotaryRows rotary = draft_.body().rotary_rows(positions.narrow(1, 0, most));
    for (int64_t layer = 0; layer < draft_.config().num_layers; ++layer) {
      const AttentionLayer& weights = draft_.body().attention_layer(layer);
      const at::Tensor key = weights.key(features, rotary);
      const at::Tensor value = weights.value(features);
      context_.store(layer, slot, key, value);
      for (size_t s = 0; s < counts.size() && !records_target() && watched(); ++s) {
        show_keys(context.sequences[s], layer, key[static_cast<int64_t>(s)],
                  value[static_cast<int64_t>(s)], counts[s]);
      }
    }
    for (size_t s = 0; s < counts.size(); ++s) {
      target_cache_.commit(slot + static_cast<int64_t>(s), counts[s]);
      context_.commit(slot + static_cast<int64_t>(s), counts[s]);
    }
  }

  bool watched() const { return callbacks_.observer != nullptr; }

  /// key, value [K, T or more, D].
  void show_keys(const SequencePass& pass, int64_t layer, const at::Tensor& key,
                 const at::Tensor& value, int64_t count) {
    const Stopwatch watch(observer_ns_);
    callbacks_.observer->on_committed_keys({pass.sequence, layer, pass.block_start,
                                            key.narrow(1, 0, count), value.narrow(1, 0, count)});
  }

  void show_target_keys(const SequencePass& pass, int64_t slot, int64_t count) {
    for (int64_t layer = 0; layer < target_.config().num_layers; ++layer) {
      const auto stored = [&](const at::Tensor& all) {
        return all[0].narrow(1, target_cache_.length(slot), count);
      };
      show_keys(pass, layer, stored(target_cache_.stored_key(layer, slot, count)),
                stored(target_cache_.stored_value(layer, slot, count)), count);
    }
  }

  void prefill(int64_t slot) {
    RoundState& state = active_[static_cast<size_t>(slot)];
    const int64_t chunk = std::max<int64_t>(run_.prefill_chunk, 1);
    for (int64_t begin = 0; begin < state.prompt_length && !interrupted_; begin += chunk) {
      const int64_t length = std::min(chunk, state.prompt_length - begin);
      const PassContext context{next_pass_++, {pass_of(state, PassKind::prefill, begin)}};
      std::vector<StepDecision> decisions;
      int64_t elapsed = 0;
      observer_ns_ = 0;
      {
        const Stopwatch watch(elapsed);
        target_seams_.begin_prefill(slot, length);
        const std::vector<int64_t> ids(state.tokens.begin() + begin,
                                       state.tokens.begin() + begin + length);
        const at::Tensor positions = at::arange(begin, begin + length, at::kLong).unsqueeze(0);
        const at::Tensor hidden =
            target_.forward(at::tensor(ids, at::kLong).unsqueeze(0), positions, target_seams_);
        keep(context, slot, hidden, positions, {length});
        if (begin + length == state.prompt_length) {
          const at::Tensor logits = target_.logits(hidden.narrow(1, length - 1, 1));
          BlockPrediction choice = std::move(
              predict_tokens(logits, run_.sampling, {{state.request->prompt_hash, 0, 0}}).front());
          state.take_given(state.prompt_length, logits[0], choice);
          decisions.emplace_back().next = state.next(choice, 0);
          state.tokens.push_back(choice.token.front());
        }
      }
      report({context, length, begin, static_cast<double>(length), elapsed - observer_ns_,
              target_seams_.attention_ns(), std::move(decisions)});
      if (begin + length < state.prompt_length) {
        interrupted_ = callbacks_.interrupted && callbacks_.interrupted();
      }
    }
    if (!interrupted_) state.find_end(run_.stop_ids);
  }

  Drafted draft_blocks(const PassContext& context) {
    Drafted drafted;
    if (block_ == 1) {
      drafted.tokens.resize(active_.size());
      return drafted;
    }
    {
      const Stopwatch watch(drafted.ns);
      at::Tensor block = at::full({std::ssize(active_), block_}, mask(), at::kLong);
      auto* token = block.mutable_data_ptr<int64_t>();
      for (size_t s = 0; s < active_.size(); ++s) {
        token[static_cast<int64_t>(s) * block_] = active_[s].tokens.back();
      }
      draft_seams_.begin_round(context);
      const at::Tensor hidden = draft_.body().forward_embedded(
          draft_.embed(block, target_), block_positions(block_), draft_seams_);
      drafted.logits = draft_.logits(hidden.narrow(1, 1, block_ - 1), target_);
      const BestTokens best = best_tokens(drafted.logits.flatten(0, 1));
      for (size_t s = 0; s < active_.size(); ++s) {
        const auto begin = static_cast<std::ptrdiff_t>(s) * (block_ - 1);
        drafted.tokens.emplace_back(best.token.begin() + begin,
                                    best.token.begin() + begin + block_ - 1);
        drafted.confidence.emplace_back(best.probability.begin() + begin,
                                        best.probability.begin() + begin + block_ - 1);
      }
      if (draft_.target_ids().defined()) {
        const auto* ids = draft_.target_ids().const_data_ptr<int64_t>();
        for (std::vector<int64_t>& tokens : drafted.tokens) {
          for (int64_t& id : tokens) id = ids[id];
        }
      }
    }
    drafted.ns -= draft_seams_.observer_ns();
    return drafted;
  }

  /// The target's logits [S, B, V] over certain tokens and drafts, and its final hidden states.
  std::pair<at::Tensor, at::Tensor> verify(const PassContext& context, const Drafted& drafted) {
    std::vector<int64_t> ids;
    for (size_t s = 0; s < active_.size(); ++s) {
      ids.push_back(active_[s].tokens.back());
      ids.insert(ids.end(), drafted.tokens[s].begin(), drafted.tokens[s].end());
    }
    // Without drafts a round has no step for observers, whose commit alone nobody looks into.
    target_seams_.begin_round(block_ > 1 ? &context : nullptr, block_);
    at::Tensor hidden = target_.forward(at::tensor(ids, at::kLong).view({-1, block_}),
                                        block_positions(block_), target_seams_);
    at::Tensor logits = target_.logits(hidden);
    return {std::move(logits), std::move(hidden)};
  }

  /// The target's choice behind each row. Draw 0 is the prefill's, then comes another one in each
  /// round, so that no two tokens hang on the same random numbers.
  std::vector<BlockPrediction> choose(const at::Tensor& logits) const {
    std::vector<StreamId> streams;
    for (const RoundState& state : active_) {
      streams.push_back({state.request->prompt_hash, state.round + 1, 0});
    }
    std::vector<BlockPrediction> chosen = predict_tokens(logits, run_.sampling, streams);
    for (size_t s = 0; s < active_.size(); ++s) {
      active_[s].take_given(active_[s].start() + 1, logits[static_cast<int64_t>(s)], chosen[s]);
    }
    return chosen;
  }

  void round() {
    // The numbers of a round's passes are the same whichever model is recorded.
    const PassContext denoising = round_context(PassKind::denoise);
    if (block_ == 1) --next_pass_;  // nothing is drafted
    const PassContext committing = round_context(PassKind::commit);
    const Drafted drafted = draft_blocks(denoising);
    int64_t verifying_ns = 0;
    int64_t keeping_ns = 0;
    at::Tensor logits;
    at::Tensor hidden;
    std::vector<BlockPrediction> chosen;
    std::vector<int64_t> kept;  // the certain token and the accepted ones
    {
      const Stopwatch watch(verifying_ns);
      std::tie(logits, hidden) = verify(denoising, drafted);
      chosen = choose(logits);
      for (size_t s = 0; s < active_.size(); ++s) {
        const std::vector<int64_t>& own = drafted.tokens[s];
        const auto differ = std::mismatch(own.begin(), own.end(), chosen[s].token.begin());
        kept.push_back(1 + (differ.first - own.begin()));
      }
    }
    verifying_ns -= target_seams_.observer_ns();
    // Before the pass stores keys: a trace's row has those that it stored itself.
    if (watched() && block_ > 1) {
      report_drafts(denoising, drafted, kept, chosen, logits,
                    records_target() ? verifying_ns : drafted.ns);
    }
    std::vector<StepDecision> decisions(active_.size());
    observer_ns_ = 0;
    {
      const Stopwatch watch(keeping_ns);
      keep(committing, 0, hidden, block_positions(block_), kept);
      for (size_t s = 0; s < active_.size(); ++s) {
        RoundState& state = active_[s];
        const std::vector<int64_t>& own = drafted.tokens[s];
        state.tokens.insert(state.tokens.end(), own.begin(), own.begin() + (kept[s] - 1));
        const NextToken next = state.next(chosen[s], kept[s] - 1);
        if (std::ssize(state.tokens) < state.end) decisions[s].next = next;
        state.tokens.push_back(next.token);
        ++state.outcome.denoising_steps;
        ++state.round;
        state.find_end(run_.stop_ids);
      }
    }
    keeping_ns -= observer_ns_;
    const bool drafts_here =
        records_target() && block_ > 1;  // the other pass has no row of its own
    report({committing, block_, 0, drafts_here ? 0.0 : rows_of_round(),
            keeping_ns + (drafts_here ? drafted.ns : verifying_ns),
            drafts_here ? 0 : target_seams_.attention_ns(), std::move(decisions)});
  }

  double rows_of_round() const { return static_cast<double>(std::ssize(active_) * block_); }

  /// The denoising rows, once the target has judged the drafts.
  void report_drafts(const PassContext& context, const Drafted& drafted,
                     const std::vector<int64_t>& kept, const std::vector<BlockPrediction>& chosen,
                     const at::Tensor& logits, int64_t pass_ns) {
    DecodeObserver& observer = *callbacks_.observer;
    std::vector<StepDecision> decisions;
    std::vector<int64_t> slots;
    std::vector<std::vector<bool>> masked;
    for (size_t s = 0; s < active_.size(); ++s) {
      decisions.push_back(
          records_target()
              ? active_[s].decision(chosen[s].token, chosen[s].confidence, block_, kept[s] - 1)
              : active_[s].decision(drafted.tokens[s], drafted.confidence[s], block_, kept[s] - 1));
      const auto slot = static_cast<int64_t>(s);
      decisions.back().verdict = judge_draft(
          drafted.logits[slot], logits[slot], drafted.tokens[s], drafted.confidence[s],
          {chosen[s].token.begin(), chosen[s].token.begin() + (block_ - 1)}, draft_.target_ids());
      slots.push_back(slot);
      masked.push_back(context.sequences[s].masked);
    }
    if (observer.wants_logits()) {
      const at::Tensor shown = records_target() ? logits.narrow(1, 0, block_ - 1) : drafted.logits;
      observer.on_masked_logits(context, slots, masked, shown.flatten(0, 1));
    }
    report({context, block_, 0, rows_of_round(), pass_ns,
            records_target() ? target_seams_.attention_ns() : draft_seams_.attention_ns(),
            std::move(decisions)});
  }

  /// Takes finished sequences out of the batch, last slot first so that moves stay valid.
  void retire() {
    for (int64_t slot = std::ssize(active_) - 1; slot >= 0; --slot) {
      RoundState& state = active_[static_cast<size_t>(slot)];
      if (!state.finished()) continue;
      finish(state);
      target_cache_.remove(slot);
      context_.remove(slot);
      if (watched()) callbacks_.observer->on_remove(slot);
      if (slot + 1 < std::ssize(active_)) state = std::move(active_.back());
      active_.pop_back();
    }
  }

  void finish(RoundState& state) {
    state.finish(mask());
    DecodeOutcome& outcome = state.outcome;
    if (callbacks_.on_finished) callbacks_.on_finished(outcome);
    finished_.push_back(std::move(outcome));
  }

  void report(const PassResult& result) const {
    if (watched()) callbacks_.observer->on_pass(result);
  }

  const DraftedRun& run_;
  int64_t& next_pass_;
  const DecodeCallbacks& callbacks_;
  const int64_t block_;
  const int64_t capacity_;
  const BlockDiffusionModel target_;
  const DraftModel draft_;
  KvCache target_cache_;
  KvCache context_;  // the draft's keys of the target's hidden states
  TargetSeams target_seams_;
  DraftSeams draft_seams_;
  std::vector<RoundState> active_;  // by slot
  std::vector<DecodeOutcome> finished_;
  int64_t observer_ns_ = 0;
  bool interrupted_ = false;
};

}  // namespace

std::vector<DecodeOutcome> decode_drafted(const DraftedRun& run,
                                          const std::vector<DecodeRequest>& requests,
                                          int64_t& next_pass, const DecodeCallbacks& callbacks) {
  return in_request_order(DraftedBatch(run, requests, next_pass, callbacks).decode(), requests);
}

}  // namespace blockscope
