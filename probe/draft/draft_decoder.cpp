#include "probe/draft/draft_decoder.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "decode_record/error.h"
#include "probe/draft/draft_seams.h"
#include "probe/draft/draft_verdict.h"
#include "probe/model/device.h"
#include "probe/model/stopwatch.h"

namespace blockscope {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

KvCacheShape shape_of(const ModelConfig& config, int64_t capacity) {
  return {config.num_layers, 1, config.num_kv_heads, capacity, config.head_dim};
}

at::Tensor row_of(const std::vector<int64_t>& tokens) {
  return at::tensor(tokens, at::kLong).unsqueeze(0);
}

at::Tensor positions(int64_t start, int64_t count) {
  return at::arange(start, start + count, at::kLong).unsqueeze(0);
}

class SequenceDecoder {
 public:
  SequenceDecoder(const DraftedRun& run, const DecodeRequest& request, int64_t& next_pass,
                  const DecodeCallbacks& callbacks)
      : run_(run),
        request_(request),
        next_pass_(next_pass),
        callbacks_(callbacks),
        prompt_length_(std::ssize(request.prompt)),
        end_(prompt_length_ + request.gen_length),
        block_(run.block_length),
        target_(run.target.for_longest_sequence(end_ + block_)),
        draft_(run.draft.for_longest_sequence(end_ + block_)),
        target_cache_(shape_of(target_.config(), end_ + block_), target_.dtype(), target_.device()),
        context_(shape_of(draft_.config(), end_ + block_), target_.dtype(), target_.device()),
        target_seams_(target_cache_, draft_.draft().target_layers, target_.config().num_layers),
        draft_seams_(context_, callbacks.observer),
        tokens_(request.prompt) {}

  DecodeOutcome decode() {
    const c10::InferenceMode guard;
    outcome_.sequence = request_.sequence;
    prefill();
    while (outcome_.reason == FinishReason::unfinished) {
      if (callbacks_.interrupted && callbacks_.interrupted()) {
        outcome_.reason = FinishReason::interrupted;
      } else {
        round();
      }
    }
    const auto decided = std::min(std::ssize(tokens_), end_);
    outcome_.generated.assign(tokens_.begin() + prompt_length_, tokens_.begin() + decided);
    outcome_.generated.resize(static_cast<size_t>(request_.gen_length), mask());
    return std::move(outcome_);
  }

 private:
  int64_t mask() const { return draft_.draft().mask_token_id; }
  int64_t start() const { return std::ssize(tokens_) - 1; }  // of the block: the certain token

  SequencePass pass_of(PassKind kind, int64_t block_start) const {
    SequencePass pass;
    pass.sequence = request_.sequence;
    pass.kind = kind;
    pass.block = round_;
    pass.block_start = block_start;
    pass.context_length = block_start;
    pass.prompt_hash = request_.prompt_hash;
    return pass;
  }

  /// The target's choice behind each of the rows: logits [R, V]. `draws`: 0 in the prefill, then
  /// another one in each round, so that no two tokens hang on the same random numbers.
  BlockPrediction choose(const at::Tensor& logits, int64_t draws) const {
    const StreamId stream{request_.prompt_hash, draws, 0};
    return std::move(predict_tokens(logits.unsqueeze(0), run_.sampling, {stream}).front());
  }

  /// What of the pass's keys and hidden states belongs to tokens that stay.
  void keep(const PassContext& context, const at::Tensor& hidden, int64_t count) {
    target_cache_.commit(0, count);
    const at::Tensor features =
        draft_.context_features(target_seams_.taps(hidden).narrow(1, 0, count));
    const int64_t begin = context_.length(0);
    const RotaryRows rotary = draft_.body().rotary_rows(positions(begin, count));
    for (int64_t layer = 0; layer < draft_.config().num_layers; ++layer) {
      const AttentionLayer& weights = draft_.body().attention_layer(layer);
      const at::Tensor key = weights.key(features, rotary);
      const at::Tensor value = weights.value(features);
      context_.store(layer, 0, key, value);
      if (callbacks_.observer == nullptr) continue;
      const Stopwatch watch(observer_ns_);
      callbacks_.observer->on_committed_keys(
          {context.sequences.front().sequence, layer, begin, key.select(0, 0), value.select(0, 0)});
    }
    context_.commit(0, count);
  }

  void prefill() {
    const int64_t chunk = std::max<int64_t>(run_.prefill_chunk, 1);
    for (int64_t begin = 0; begin < prompt_length_; begin += chunk) {
      const int64_t length = std::min(chunk, prompt_length_ - begin);
      const PassContext context{next_pass_++, {pass_of(PassKind::prefill, begin)}};
      StepDecision known;
      int64_t elapsed = 0;
      observer_ns_ = 0;
      {
        const Stopwatch watch(elapsed);
        target_seams_.begin_pass(length);
        const std::vector<int64_t> ids(tokens_.begin() + begin, tokens_.begin() + begin + length);
        const at::Tensor hidden =
            target_.forward(row_of(ids), positions(begin, length), target_seams_);
        keep(context, hidden, length);
        if (begin + length == prompt_length_) {
          known.next =
              next_of(choose(target_.logits(hidden[0].narrow(0, length - 1, 1)), /*draws=*/0), 0);
          take(*known.next);
        }
      }
      std::vector<StepDecision> decisions;
      if (known.next) decisions.push_back(std::move(known));
      report({context, length, begin, static_cast<double>(length), elapsed - observer_ns_,
              target_seams_.attention_ns(), std::move(decisions)});
      if (begin + length < prompt_length_ && callbacks_.interrupted && callbacks_.interrupted()) {
        outcome_.reason = FinishReason::interrupted;
        return;
      }
    }
    find_end();
  }

  NextToken next_of(const BlockPrediction& choices, int64_t row) const {
    const auto at = static_cast<size_t>(row);
    return {choices.token[at], choices.confidence[at], std::ssize(tokens_)};
  }

  void take(const NextToken& next) { tokens_.push_back(next.token); }

  struct Drafted {
    std::vector<int64_t> tokens;    // [B - 1], ids of the target
    std::vector<float> confidence;  // [B - 1]
    at::Tensor logits;              // [B - 1, draft vocabulary]
    int64_t ns = 0, observer_ns = 0;
  };

  Drafted draft_block(const PassContext& context) {
    int64_t elapsed = 0;
    Drafted drafted = timed_draft(context, elapsed);
    drafted.ns = elapsed;
    return drafted;
  }

  Drafted timed_draft(const PassContext& context, int64_t& elapsed) {
    const Stopwatch watch(elapsed);
    Drafted drafted;
    std::vector<int64_t> block(static_cast<size_t>(block_), mask());
    block.front() = tokens_.back();
    draft_seams_.begin_pass(context);
    const at::Tensor hidden = draft_.body().forward_embedded(
        draft_.embed(row_of(block), target_), positions(start(), block_), draft_seams_);
    drafted.logits = draft_.logits(hidden[0].narrow(0, 1, block_ - 1), target_);
    const BestTokens best = best_tokens(drafted.logits);
    drafted.tokens = best.token;
    drafted.confidence = best.probability;
    if (draft_.target_ids().defined()) {
      const auto* ids = draft_.target_ids().const_data_ptr<int64_t>();
      for (int64_t& token : drafted.tokens) token = ids[token];
    }
    drafted.observer_ns = draft_seams_.observer_ns();
    return drafted;
  }

  SequencePass draft_pass() const {
    SequencePass pass = pass_of(PassKind::denoise, start());
    pass.step = 1;
    pass.masks_left = block_ - 1;
    pass.masked.assign(static_cast<size_t>(block_), true);
    pass.masked.front() = false;
    pass.run_step = round_ + 1;
    return pass;
  }

  /// The draft's row, once the target has judged it.
  void report_draft(const PassContext& drafting, const Drafted& drafted, int64_t accepted,
                    const BlockPrediction& chosen, const at::Tensor& target_logits) const {
    if (callbacks_.observer == nullptr || block_ == 1) return;
    StepDecision decision = decision_of(drafted, accepted);
    decision.verdict = judge_draft(drafted.logits, target_logits, drafted.tokens,
                                   {chosen.token.begin(), chosen.token.begin() + (block_ - 1)},
                                   draft_.target_ids());
    if (callbacks_.observer->wants_logits()) {
      callbacks_.observer->on_masked_logits(drafting, {0}, {drafting.sequences.front().masked},
                                            drafted.logits);
    }
    report({drafting,
            block_,
            start(),
            static_cast<double>(block_),
            drafted.ns - drafted.observer_ns,
            draft_seams_.attention_ns(),
            {std::move(decision)}});
  }

  void round() {
    const int64_t first = start();
    const PassContext drafting{next_pass_, {draft_pass()}};
    if (block_ > 1) ++next_pass_;
    const Drafted drafted = block_ > 1 ? draft_block(drafting) : Drafted{};
    const PassContext verifying{next_pass_++, {pass_of(PassKind::commit, first)}};
    int64_t elapsed = 0;
    at::Tensor hidden;
    at::Tensor logits;
    BlockPrediction chosen;
    int64_t accepted = 0;
    {
      const Stopwatch watch(elapsed);
      std::vector<int64_t> block{tokens_.back()};
      block.insert(block.end(), drafted.tokens.begin(), drafted.tokens.end());
      target_seams_.begin_pass(block_);
      hidden = target_.forward(row_of(block), positions(first, block_), target_seams_);
      logits = target_.logits(hidden[0]);
      chosen = choose(logits, round_ + 1);
      while (accepted + 1 < block_ && drafted.tokens[static_cast<size_t>(accepted)] ==
                                          chosen.token[static_cast<size_t>(accepted)]) {
        ++accepted;
      }
    }
    // Before the pass stores keys: a trace's row has those that it stored itself.
    report_draft(drafting, drafted, accepted, chosen, logits);
    StepDecision committed;
    observer_ns_ = 0;
    {
      const Stopwatch watch(elapsed);
      keep(verifying, hidden, accepted + 1);
      tokens_.insert(tokens_.end(), drafted.tokens.begin(), drafted.tokens.begin() + accepted);
      const NextToken next = next_of(chosen, accepted);
      if (std::ssize(tokens_) < end_) committed.next = next;
      take(next);
    }
    ++outcome_.denoising_steps;
    report({verifying,
            block_,
            first,
            static_cast<double>(block_),
            elapsed - observer_ns_,
            target_seams_.attention_ns(),
            {committed}});
    ++round_;
    find_end();
  }

  StepDecision decision_of(const Drafted& drafted, int64_t accepted) const {
    StepDecision decision;
    BlockPrediction& prediction = decision.prediction;
    prediction.token = {-1};
    prediction.confidence = {kNaN};
    prediction.token.insert(prediction.token.end(), drafted.tokens.begin(), drafted.tokens.end());
    prediction.confidence.insert(prediction.confidence.end(), drafted.confidence.begin(),
                                 drafted.confidence.end());
    prediction.top1 = prediction.token;
    prediction.top1_confidence = prediction.confidence;
    // What lies behind the answer's end was accepted too, and is no part of it.
    for (int64_t p = 1; p <= accepted && start() + p < end_; ++p) decision.transferred.push_back(p);
    return decision;
  }

  /// As dflash_generate ends: at a stop token in anything behind the prompt, or at the length.
  void find_end() {
    const auto stops = [this](int64_t token) {
      return std::find(run_.stop_ids.begin(), run_.stop_ids.end(), token) != run_.stop_ids.end();
    };
    const auto decided = std::min(std::ssize(tokens_), end_);
    if (std::any_of(tokens_.begin() + prompt_length_, tokens_.begin() + decided, stops)) {
      outcome_.reason = FinishReason::stop;
    } else if (start() >= end_) {
      outcome_.reason = FinishReason::length;
    }
  }

  void report(const PassResult& result) const {
    if (callbacks_.observer != nullptr) callbacks_.observer->on_pass(result);
  }

  const DraftedRun& run_;
  const DecodeRequest& request_;
  int64_t& next_pass_;
  const DecodeCallbacks& callbacks_;
  const int64_t prompt_length_;
  const int64_t end_;  // position behind the answer
  const int64_t block_;
  const BlockDiffusionModel target_;
  const DraftModel draft_;
  KvCache target_cache_;
  KvCache context_;  // the draft's keys of the target's hidden states
  TargetSeams target_seams_;
  DraftSeams draft_seams_;
  std::vector<int64_t> tokens_;  // prompt and what is decided; the last one is not yet an input
  int64_t round_ = 0;
  int64_t observer_ns_ = 0;
  DecodeOutcome outcome_;
};

}  // namespace

std::vector<DecodeOutcome> decode_drafted(const DraftedRun& run,
                                          const std::vector<DecodeRequest>& requests,
                                          int64_t& next_pass, const DecodeCallbacks& callbacks) {
  std::vector<DecodeOutcome> outcomes;
  for (const DecodeRequest& request : requests) {
    if (request.replayed) {
      throw UsageError("--replay: is not there for drafted runs. HINT: leave --draft out");
    }
    if (!outcomes.empty() && outcomes.back().reason == FinishReason::interrupted) {
      outcomes.emplace_back();
      outcomes.back().sequence = request.sequence;
      outcomes.back().reason = FinishReason::interrupted;
      continue;
    }
    outcomes.push_back(SequenceDecoder(run, request, next_pass, callbacks).decode());
    if (callbacks.on_finished) callbacks.on_finished(outcomes.back());
    if (callbacks.observer != nullptr) callbacks.observer->on_remove(0);
  }
  return outcomes;
}

}  // namespace blockscope
