#include "probe/draft/draft_decoder.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "probe/decode/slot_loop.h"
#include "probe/draft/draft_seams.h"
#include "probe/draft/draft_verdict.h"
#include "probe/draft/round_state.h"
#include "probe/model/device.h"
#include "probe/model/stopwatch.h"

namespace blockscope {
namespace {

/// The draft's tokens for the blocks of all active sequences.
struct Drafted {
  std::vector<std::vector<int64_t>> tokens;  // [S][B - 1], ids of the target
  DraftedTokens chosen;                      // the same, with the head's output
  int64_t ns = 0;

  /// Of a draft without a selector: [B - 1].
  std::vector<float> confidence_of(size_t s) const {
    const auto count = std::ssize(tokens[s]);
    const auto first = chosen.confidence.begin() + static_cast<int64_t>(s) * count;
    return {first, first + count};
  }
};

/// The target's pass over them.
struct Verified {
  at::Tensor hidden;                    // [S, B, hidden_size]
  at::Tensor logits;                    // [S, B, V]
  std::vector<BlockPrediction> chosen;  // [S][B], the target's choice after each row
  std::vector<int64_t> kept;            // [S], number of accepted tokens, plus the certain one
  int64_t ns = 0;
};

class RoundLoop final : public SlotLoop<RoundState> {
 public:
  RoundLoop(const DraftedRun& run, const std::vector<DecodeRequest>& requests, int64_t& next_pass,
            const DecodeCallbacks& callbacks)
      : SlotLoop(next_pass, callbacks),
        run_(run),
        block_(run.block_length),
        capacity_(longest_end(requests) + block_),
        target_(run.target.for_longest_sequence(capacity_)),
        draft_(run.draft.for_longest_sequence(capacity_)),
        target_cache_(cache_of(target_.config(), std::ssize(requests))),
        context_(cache_of(draft_.config(), std::ssize(requests))),
        target_seams_(target_cache_, draft_.draft().target_layers, target_.config().num_layers,
                      watcher_),
        draft_seams_(context_, draft_.config(), watcher_) {
    for (const DecodeRequest& request : requests) active_.emplace_back(request, mask());
  }

 private:
  KvCache cache_of(const ModelConfig& config, int64_t slots) const {
    return {cache_shape(config, slots, capacity_, std::max(prefill_chunk(), block_)),
            target_.dtype(), target_.device()};
  }
  int64_t prefill_chunk() const { return std::max<int64_t>(run_.prefill_chunk, 1); }
  bool records_target() const { return run_.recorded == RecordedModel::target; }
  int64_t mask() const { return draft_.draft().mask_token_id; }

  /// The context of a round's pass over all active sequences.
  PassContext round_context(PassKind kind) {
    PassContext context{next_pass_++, {}};
    for (const RoundState& state : active_) {
      SequencePass& pass = context.sequences.emplace_back();
      pass.sequence = state.request->sequence;
      pass.kind = kind;
      pass.block = state.round;
      pass.block_start = pass.context_length = state.start();
      pass.prompt_hash = state.request->prompt_hash;
      if (kind != PassKind::denoise) continue;
      pass.step = 1;
      pass.masks_left = block_ - 1;
      pass.masked.assign(static_cast<size_t>(block_), true);
      pass.masked.front() = false;
      if (!records_target() && draft_.rows_of(block_) < block_) {
        pass.computed.assign(static_cast<size_t>(block_), true);
        pass.computed.back() = false;
      }
      pass.run_step = state.round + 1;
    }
    return context;
  }

  /// [S, rows]: the first positions of every active sequence's block.
  at::Tensor block_positions(int64_t rows) const {
    std::vector<int64_t> positions;
    for (const RoundState& state : active_) {
      for (int64_t p = 0; p < rows; ++p) positions.push_back(state.start() + p);
    }
    return at::tensor(positions, at::kLong).view({-1, rows});
  }

  /// Keeps the pass's keys and hidden states [S, T, hidden_size] of tokens that stay: the first
  /// counts[s] positions of the sequences from `slot` on. `positions` [S, T]: those of the pass.
  void keep(const PassContext& context, int64_t slot, const at::Tensor& hidden,
            const at::Tensor& positions, const std::vector<int64_t>& counts) {
    const int64_t most = *std::max_element(counts.begin(), counts.end());
    const std::vector<int64_t> shown = inside_answer(context, slot, counts);
    if (records_target()) show_target_keys(context, slot, shown);
    const at::Tensor features =
        draft_.context_features(target_seams_.taps().side_by_side(hidden).narrow(1, 0, most));
    const RotaryRows rotary = draft_.body().rotary_rows(positions.narrow(1, 0, most));
    for (int64_t layer = 0; layer < draft_.config().num_layers; ++layer) {
      const AttentionLayer& weights = draft_.body().attention_layer(layer);
      const at::Tensor key = weights.key(features, rotary);
      const at::Tensor value = weights.value(features);
      context_.store(layer, slot, key, value);
      for (int64_t s = 0; s < std::ssize(counts) && !records_target(); ++s) {
        show_keys(context, s, layer, key[s], value[s], shown);
      }
    }
    for (size_t s = 0; s < counts.size(); ++s) {
      target_cache_.commit(slot + static_cast<int64_t>(s), counts[s]);
      context_.commit(slot + static_cast<int64_t>(s), counts[s]);
    }
  }

  /// How many of the counts[s] positions are before the answer's last possible one. A round may
  /// accept tokens after it, but frames and traces have no place for them.
  std::vector<int64_t> inside_answer(const PassContext& context, int64_t slot,
                                     std::vector<int64_t> counts) const {
    for (int64_t s = 0; s < std::ssize(counts); ++s) {
      const RoundState& state = active_[static_cast<size_t>(slot + s)];
      const int64_t end = state.prompt_length + state.request->gen_length;
      int64_t& count = counts[static_cast<size_t>(s)];
      count = std::clamp<int64_t>(end - context.sequences[static_cast<size_t>(s)].block_start, 0,
                                  count);
    }
    return counts;
  }

  /// Shows the first counts[s] of key, value [K, T or more, D] of the pass's sequence s.
  void show_keys(const PassContext& context, int64_t s, int64_t layer, const at::Tensor& key,
                 const at::Tensor& value, const std::vector<int64_t>& counts) {
    const SequencePass& pass = context.sequences[static_cast<size_t>(s)];
    const int64_t count = counts[static_cast<size_t>(s)];
    watcher_.show([&](DecodeObserver& observer) {
      observer.on_committed_keys({pass.sequence, layer, pass.block_start, key.narrow(1, 0, count),
                                  value.narrow(1, 0, count)});
    });
  }

  void show_target_keys(const PassContext& context, int64_t slot,
                        const std::vector<int64_t>& counts) {
    for (int64_t s = 0; s < std::ssize(counts) && watched(); ++s) {
      const int64_t count = counts[static_cast<size_t>(s)];
      const auto stored = [&](const at::Tensor& all) {
        return all[0].narrow(1, target_cache_.length(slot + s), count);
      };
      for (int64_t layer = 0; layer < target_.config().num_layers; ++layer) {
        show_keys(context, s, layer, stored(target_cache_.stored_key(layer, slot + s, count)),
                  stored(target_cache_.stored_value(layer, slot + s, count)), counts);
      }
    }
  }

  void prefill(int64_t slot) override {
    RoundState& state = active(slot);
    if (state.outcome.reason != FinishReason::unfinished) return;  // a replay without an answer
    prefill_chunks(slot, state.prompt_length, prefill_chunk(),
                   [&](const PassContext& context, PassResult& result, const at::Tensor& ids,
                       const at::Tensor& positions) {
                     target_seams_.begin_pass(nullptr, slot, result.length);
                     const at::Tensor hidden = target_.forward(ids, positions, target_seams_);
                     result.attention_ns = target_seams_.attention_ns();
                     keep(context, slot, hidden, positions, {result.length});
                     if (result.start + result.length < state.prompt_length) return;
                     result.decisions.emplace_back().next =
                         choose_first(state, hidden.narrow(1, result.length - 1, 1));
                     state.find_end(run_.stop_ids);
                   });
  }

  /// The token after the prompt; hidden [1, 1, hidden_size] is of the prompt's last position.
  NextToken choose_first(RoundState& state, const at::Tensor& hidden) const {
    const at::Tensor logits = target_.logits(hidden);
    BlockPrediction choice = std::move(
        predict_tokens(logits, run_.sampling, {{state.request->prompt_hash, 0, 0}}).front());
    state.take_given(state.prompt_length, logits[0], choice);
    const NextToken next = state.next(choice, 0);
    state.tokens.push_back(next.token);
    return next;
  }

  void draft_blocks(const PassContext& context, Drafted& drafted) {
    if (block_ == 1) {
      drafted.tokens.resize(active_.size());
      return;
    }
    const UnwatchedStopwatch watch(drafted.ns, watcher_);
    const int64_t rows = draft_.rows_of(block_);
    at::Tensor block = at::full({std::ssize(active_), rows}, mask(), at::kLong);
    auto* token = block.mutable_data_ptr<int64_t>();
    for (size_t s = 0; s < active_.size(); ++s) {
      token[static_cast<int64_t>(s) * rows] = active_[s].tokens.back();
    }
    draft_seams_.begin_round(records_target() ? nullptr : &context, rows, block_);
    const at::Tensor hidden = draft_.body().forward_embedded(draft_.embed(block, target_),
                                                             block_positions(rows), draft_seams_);
    drafted.chosen = draft_.choose(hidden, block.select(1, 0), target_);
    for (auto first = drafted.chosen.token.begin(); first != drafted.chosen.token.end();
         first += block_ - 1) {
      drafted.tokens.emplace_back(first, first + (block_ - 1));
    }
  }

  /// The target's pass over certain tokens and drafts.
  void verify(const PassContext& context, const Drafted& drafted, Verified& verified) {
    const UnwatchedStopwatch watch(verified.ns, watcher_);
    std::vector<int64_t> ids;
    for (size_t s = 0; s < active_.size(); ++s) {
      ids.push_back(active_[s].tokens.back());
      ids.insert(ids.end(), drafted.tokens[s].begin(), drafted.tokens[s].end());
    }
    // A round without drafted tokens has no step, and observers never look into a commit alone.
    target_seams_.begin_pass(records_target() && block_ > 1 ? &context : nullptr, 0, block_);
    verified.hidden = target_.forward(at::tensor(ids, at::kLong).view({-1, block_}),
                                      block_positions(block_), target_seams_);
    verified.logits = target_.logits(verified.hidden);
    verified.chosen = choose(verified.logits);
    for (size_t s = 0; s < active_.size(); ++s) {
      const std::vector<int64_t>& own = drafted.tokens[s];
      const auto differ = std::mismatch(own.begin(), own.end(), verified.chosen[s].token.begin());
      verified.kept.push_back(1 + (differ.first - own.begin()));
    }
  }

  /// The target's choice after each row. The prefill uses draw 0 and each round a new one, so no
  /// two tokens depend on the same random numbers.
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

  /// Runs a round.
  void step() override {
    // The numbers of a round's passes do not depend on the recorded model.
    const PassContext denoising = round_context(PassKind::denoise);
    if (block_ == 1) --next_pass_;  // nothing is drafted
    const PassContext committing = round_context(PassKind::commit);
    Drafted drafted;
    draft_blocks(denoising, drafted);
    Verified verified;
    verify(denoising, drafted, verified);
    // Reported before the commit stores keys: a trace's row has only those that it stored itself.
    if (watched() && block_ > 1) report_drafts(denoising, drafted, verified);
    const bool drafts_here =
        records_target() && block_ > 1;  // the commit's row has the draft's time
    PassResult result{committing, block_, 0, drafts_here ? 0.0 : rows_of_round(block_),
                      drafts_here ? drafted.ns : verified.ns};
    {
      const UnwatchedStopwatch watch(result.pass_ns, watcher_);
      keep(committing, 0, verified.hidden, block_positions(block_), verified.kept);
      for (size_t s = 0; s < active_.size(); ++s) {
        result.decisions.push_back(accept(s, drafted, verified));
      }
    }
    if (!drafts_here) result.attention_ns = target_seams_.attention_ns();
    report(result);
  }

  /// Ends the round of sequence s: takes the accepted drafted tokens and the target's next token.
  StepDecision accept(size_t s, const Drafted& drafted, const Verified& verified) {
    RoundState& state = active_[s];
    const auto own = drafted.tokens[s].begin();
    const int64_t accepted = verified.kept[s] - 1;
    state.tokens.insert(state.tokens.end(), own, own + accepted);
    const NextToken next = state.next(verified.chosen[s], accepted);
    StepDecision decision;
    if (std::ssize(state.tokens) < state.end) decision.next = next;
    state.tokens.push_back(next.token);
    ++state.outcome.denoising_steps;
    ++state.round;
    state.find_end(run_.stop_ids);
    return decision;
  }

  double rows_of_round(int64_t rows) const {
    return static_cast<double>(std::ssize(active_) * rows);
  }

  /// Reports the denoising rows, after the target has judged the drafted tokens.
  void report_drafts(const PassContext& context, const Drafted& drafted, const Verified& verified) {
    PassResult result{
        context,
        block_,
        0,
        rows_of_round(records_target() ? block_ : draft_.rows_of(block_)),
        records_target() ? verified.ns : drafted.ns,
        records_target() ? target_seams_.attention_ns() : draft_seams_.attention_ns()};
    const at::Tensor logits = draft_.scaled(drafted.chosen.head);
    std::vector<int64_t> slots;
    std::vector<std::vector<bool>> masked;
    for (size_t s = 0; s < active_.size(); ++s) {
      const auto slot = static_cast<int64_t>(s);
      const BlockPrediction& chosen = verified.chosen[s];
      const std::vector<int64_t> choices(chosen.token.begin(), chosen.token.begin() + (block_ - 1));
      std::optional<DraftCandidates> candidates;
      if (drafted.chosen.path) {
        candidates = list_candidates(*drafted.chosen.path, slot, logits[slot], choices);
      }
      const std::vector<float> sure =
          candidates ? chosen_probability(*candidates) : drafted.confidence_of(s);
      StepDecision& decision = result.decisions.emplace_back(active_[s].decision(
          records_target() ? chosen.token : drafted.tokens[s],
          records_target() ? chosen.confidence : sure, block_, verified.kept[s] - 1));
      decision.verdict = judge_draft(logits[slot], verified.logits[slot], drafted.tokens[s], sure,
                                     choices, draft_.target_ids());
      decision.verdict->candidates = std::move(candidates);
      slots.push_back(slot);
      masked.push_back(context.sequences[s].masked);
    }
    watcher_.show([&](DecodeObserver& observer) {
      if (!observer.wants_logits()) return;
      const at::Tensor shown = records_target() ? verified.logits.narrow(1, 0, block_ - 1) : logits;
      observer.on_masked_logits(context, slots, masked, shown.flatten(0, 1));
    });
    report(result);
  }

  void leave(int64_t slot) override {
    target_cache_.remove(slot);
    context_.remove(slot);
  }

  const DraftedRun& run_;
  const int64_t block_;
  const int64_t capacity_;
  const BlockDiffusionModel target_;
  const DraftModel draft_;
  KvCache target_cache_;
  KvCache context_;  // the draft's keys and values, made from the target's hidden states
  TargetSeams target_seams_;
  DraftSeams draft_seams_;
};

}  // namespace

std::vector<DecodeOutcome> decode_drafted(const DraftedRun& run,
                                          const std::vector<DecodeRequest>& requests,
                                          int64_t& next_pass, const DecodeCallbacks& callbacks) {
  return in_request_order(RoundLoop(run, requests, next_pass, callbacks).run(), requests);
}

}  // namespace blockscope
