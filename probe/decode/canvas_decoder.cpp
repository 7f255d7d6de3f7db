#include "probe/decode/canvas_decoder.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "decode_record/base/nan.h"
#include "probe/decode/canvas_seams.h"
#include "probe/decode/step_decision.h"
#include "probe/decode/true_pass.h"
#include "probe/model/device.h"
#include "probe/model/host_copies.h"
#include "probe/model/stopwatch.h"
#include "probe/strategies/strategy_table.h"

namespace blockscope {
namespace {

CanvasShape canvas_shape(const ModelConfig& config, const DecodeOptions& options, int64_t length) {
  return {config.num_layers, config.num_kv_heads, config.head_dim, length, options.block_length()};
}

class CanvasDecoder {
 public:
  CanvasDecoder(const BlockDiffusionModel& model, AttentionPolicy& policy,
                const DecodeOptions& options, const DecodeRequest& request, int64_t& next_pass,
                const DecodeCallbacks& callbacks)
      : model_(model.for_longest_sequence(longest_sequence({request}, options))),
        options_(options),
        request_(request),
        next_pass_(next_pass),
        callbacks_(callbacks),
        policy_(policy),
        tokens_(request.prompt),
        cache_(cache_entry(options.cache).make(options.cache)),
        strategy_(strategy_entry(options.unmasking)),
        keys_(canvas_shape(model.config(), options, longest_sequence({request}, options)),
              model.dtype(), model.device()),
        seams_(policy, *cache_, keys_, callbacks.observer, options.shadow) {
    outcome_.sequence = request.sequence;
    state_.prompt_length = static_cast<int64_t>(request.prompt.size());
    state_.length = keys_.shape().length;
    state_.block_length = options.block_length();
    state_.logit_shift = model.config().logit_shift;
    tokens_.resize(static_cast<size_t>(state_.length), options.mask_token_id);
    state_.tokens = &tokens_;
  }

  DecodeOutcome run() {
    const c10::InferenceMode guard;
    if (request_.replayed && request_.replay.empty()) outcome_.reason = FinishReason::replayed;
    while (outcome_.reason == FinishReason::unfinished) {
      if (step_ == 0) begin_block();
      denoise();
      if (block_ended()) end_block();
      const bool stop = callbacks_.interrupted && callbacks_.interrupted();
      if (stop && outcome_.reason == FinishReason::unfinished) {
        outcome_.reason = FinishReason::interrupted;
      }
    }
    outcome_.generated.assign(tokens_.begin() + state_.prompt_length, tokens_.end());
    policy_.remove(0);
    if (callbacks_.observer != nullptr) callbacks_.observer->on_remove(0);
    if (callbacks_.on_finished) callbacks_.on_finished(outcome_);
    return std::move(outcome_);
  }

 private:
  void begin_block() {
    state_.block_start = state_.prompt_length + block_ * state_.block_length;
    keys_.begin_block(state_.block_start);
    last_input_.clear();
  }

  std::vector<int64_t> block_tokens() const {
    const auto begin = tokens_.begin() + state_.block_start;
    return {begin, begin + state_.block_length};
  }

  SequencePass plan() {
    SequencePass pass;
    pass.sequence = outcome_.sequence;
    pass.block = block_;
    pass.block_start = state_.block_start;
    pass.step = step_ + 1;
    pass.run_step = outcome_.denoising_steps + 1;
    pass.planned_steps = (state_.length - state_.prompt_length) / state_.block_length *
                         options_.unmasking.denoising_steps;
    pass.context_length = state_.length - state_.block_length;
    pass.prompt_hash = request_.prompt_hash;
    const std::vector<int64_t> input = block_tokens();
    for (const int64_t token : input) pass.masked.push_back(token == options_.mask_token_id);
    pass.masks_left = std::count(pass.masked.begin(), pass.masked.end(), true);
    for (size_t i = 0; i < last_input_.size(); ++i) pass.changed += input[i] != last_input_[i];
    last_input_ = input;
    state_.step = pass.step;
    state_.run_step = pass.run_step;
    state_.masked.clear();
    for (const int64_t token : tokens_) state_.masked.push_back(token == options_.mask_token_id);
    return pass;
  }

  /// One pass and its decision.
  void denoise() {
    PassContext context{next_pass_++, {plan()}};
    SequencePass& pass = context.sequences.front();
    const std::vector<int64_t> rows = cache_->rows(state_);
    for (int64_t p = state_.block_start; p < state_.block_end(); ++p) {
      pass.computed.push_back(std::binary_search(rows.begin(), rows.end(), p));
    }
    std::vector<StepDecision> decisions;
    int64_t elapsed = 0;
    int64_t beside_ns = 0;  // of the observer and the shadow
    int64_t deciding_ns = 0;
    {
      const Stopwatch watch(elapsed);
      std::vector<int64_t> ids;
      for (const int64_t row : rows) ids.push_back(tokens_[static_cast<size_t>(row)]);
      std::vector<int64_t> positions = rows;
      if (looks_twice()) {
        ids.insert(ids.end(), pass.masked.size(), options_.mask_token_id);
        for (int64_t p = state_.block_start; p < state_.block_end(); ++p) positions.push_back(p);
      }
      const auto shadow_rows = std::ssize(positions) - std::ssize(rows);
      PredictingRows predicting = predicting_rows(rows);
      std::optional<at::Tensor> needed;
      if (shadow_rows == 0 && !cache_->keeps_outputs()) needed = needed_rows(rows, predicting);
      seams_.begin_pass(context, rows, shadow_rows, needed);
      const at::Tensor hidden =
          model_.forward(at::tensor(ids, at::kLong).unsqueeze(0),
                         at::tensor(positions, at::kLong).unsqueeze(0), seams_);
      seams_.end_pass();
      std::vector<StepInput> inputs{step_input(pass, predicting.exists)};
      const bool masks = predicts_masks_alone();
      if (masks) leave_decided_out(pass, predicting, inputs.front());
      const at::Tensor all =
          model_.logits(hidden.index_select(1, index_on(predicting.index, hidden.device())));
      const at::Tensor logits = masks ? all[0] : all.narrow(1, 0, state_.block_length);
      HostCopies behind;
      if (!masks) {
        inputs.front().behind = predicting.behind;
        inputs.front().behind_logits =
            all[0].narrow(0, state_.block_length, std::ssize(predicting.behind));
        behind = behind_confidence(inputs.front());
      }
      if (callbacks_.observer != nullptr) {
        const Stopwatch observer_watch(beside_ns);
        if (callbacks_.observer->wants_logits()) {
          if (masks) {
            callbacks_.observer->on_masked_logits(context, {0}, predicted_by(inputs), logits);
          } else {
            callbacks_.observer->on_logits(context, {0}, predicted_logits(logits, inputs));
          }
        }
        if (options_.shadow) {
          callbacks_.observer->on_staleness(context,
                                            measure_staleness(model_, tokens_, keys_, seams_));
        }
      }
      if (looks_twice()) {
        inputs.front().shadow =
            model_.logits(hidden.narrow(1, std::ssize(rows), shadow_rows)).squeeze(0);
      }
      {
        const Stopwatch deciding(deciding_ns);
        decisions = decide_tokens(options_, logits, inputs);
      }
      take(decisions.front(), predicting, behind);
    }
    if (callbacks_.observer == nullptr) return;
    callbacks_.observer->on_pass({context, state_.block_length, state_.block_start,
                                  seams_.computed_rows(),
                                  elapsed - seams_.observer_ns() - beside_ns, seams_.attention_ns(),
                                  std::move(decisions), seams_.work(), deciding_ns});
  }

  /// Whether WINO's shadow block goes along. A replay knows what is taken back.
  bool looks_twice() const { return strategy_.second_look && !request_.replayed; }

  /// The rows of a pass whose logits are looked at, by their place among its rows.
  struct PredictingRows {
    std::vector<int64_t> index;   // [B + N]: of the block's positions, any row of the pass for one
                                  // that has none; and of `behind`
    std::vector<bool> exists;     // [B]
    std::vector<int64_t> behind;  // [N] masks after the block, where somebody asks for them
  };
  PredictingRows predicting_rows(const std::vector<int64_t>& rows) const {
    const auto row_of = [&](int64_t p) -> std::optional<int64_t> {
      const auto found = std::lower_bound(rows.begin(), rows.end(), p - state_.logit_shift);
      if (found == rows.end() || *found != p - state_.logit_shift) return std::nullopt;
      return found - rows.begin();
    };
    PredictingRows result;
    for (int64_t p = state_.block_start; p < state_.block_end(); ++p) {
      const auto row = row_of(p);
      result.index.push_back(row.value_or(0));
      result.exists.push_back(row.has_value());
    }
    const bool moved = strategy_.remembers;
    if (!moved && !cache_->wants_answer_confidence()) return result;
    for (int64_t p = state_.block_end(); p < state_.length; ++p) {
      const auto row = row_of(p);
      if (!row || !state_.masked[static_cast<size_t>(p)]) continue;
      result.index.push_back(*row);
      result.behind.push_back(p);
    }
    return result;
  }

  /// Whether nobody looks at predictions of positions that are decided.
  bool predicts_masks_alone() const {
    const DecodeObserver* observer = callbacks_.observer;
    return (observer == nullptr || !observer->wants_every_prediction()) && masks_alone(options_) &&
           !looks_twice() && !cache_->wants_answer_confidence() && model_.logits_stand_alone();
  }

  /// Then the rows that predict are those of the block's masks.
  static void leave_decided_out(const SequencePass& pass, PredictingRows& predicting,
                                StepInput& input) {
    std::vector<int64_t> rows;
    for (size_t p = 0; p < pass.masked.size(); ++p) {
      input.predicted[p] = input.predicted[p] && pass.masked[p];
      if (input.predicted[p]) rows.push_back(predicting.index[p]);
    }
    predicting.index = rows;
  }

  /// The rows of the pass whose last hidden states are read: those that predict, and the block's
  /// own, which observers are shown. `predicting` becomes places among them.
  at::Tensor needed_rows(const std::vector<int64_t>& rows, PredictingRows& predicting) const {
    std::vector<int64_t> needed = predicting.index;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i] < state_.block_start || rows[i] >= state_.block_end()) continue;
      needed.push_back(static_cast<int64_t>(i));
    }
    std::sort(needed.begin(), needed.end());
    needed.erase(std::unique(needed.begin(), needed.end()), needed.end());
    for (int64_t& row : predicting.index) {
      row = std::lower_bound(needed.begin(), needed.end(), row) - needed.begin();
    }
    return at::tensor(needed, at::kLong);
  }

  /// `exists`: positions that this pass predicts. No other is decided.
  StepInput step_input(const SequencePass& pass, std::vector<bool> exists) {
    const ReplayStep* replay = request_.replayed ? &request_.replay[replay_cursor_] : nullptr;
    StepInput input{pass, tokens_, state_.prompt_length, state_.block_start, replay, memory_};
    input.predicted = std::move(exists);
    input.first_only = cache_->decides_first_position_only(state_);
    return input;
  }

  /// [N] of the best tokens of the masks after the block, where the cache asks for them, and the
  /// tokens, where the strategy looks at them. The step's decision waits for what stands after
  /// these in their stream.
  HostCopies behind_confidence(const StepInput& input) const {
    if (!cache_->wants_answer_confidence() || input.behind.empty()) return {};
    std::vector best{
        best_scores(input.behind_logits, prediction_needs(options_.unmasking).rank_by)};
    if (debiases()) best.push_back(input.behind_logits.argmax(-1));
    return HostCopies(best);
  }

  void take(const StepDecision& decision, const PredictingRows& predicting, HostCopies& behind) {
    CanvasFeedback feedback;
    if (cache_->wants_answer_confidence()) {
      feedback.confidence = answer_confidence(decision.prediction, predicting.behind, behind);
    }
    for (const int64_t p : decision.selected) {
      feedback.selected.push_back(state_.block_start + p);
    }
    for (const int64_t p : decision.transferred) {
      const auto position = static_cast<size_t>(state_.block_start + p);
      tokens_[position] = decision.prediction.token[static_cast<size_t>(p)];
      state_.masked[position] = false;
    }
    for (const Revocation& revoked : decision.revoked) {
      const auto position = static_cast<size_t>(state_.block_start + revoked.position);
      tokens_[position] = options_.mask_token_id;
      state_.masked[position] = true;
    }
    cache_->end_step(state_, feedback);
    ++step_;
    ++replay_cursor_;
    ++outcome_.denoising_steps;
  }

  bool debiases() const { return static_cast<bool>(strategy_.answer_scores); }

  /// d2Cache's confidence: what the strategy ranks by, before the density and the weight of the
  /// place in the block (`generation/vanilla.py:generate_step`).
  std::vector<float> debiased(const std::vector<int64_t>& token,
                              const std::vector<float>& confidence) const {
    return strategy_.answer_scores(options_.unmasking, token, confidence, false);
  }
  std::vector<float> ranks_of(const BlockPrediction& prediction) const {
    if (debiases()) return debiased(prediction.token, prediction.confidence);
    if (prediction_needs(options_.unmasking).rank_by == RankBy::kConfidence) {
      return prediction.confidence;
    }
    return {prediction.score.begin(), prediction.score.end()};
  }

  /// [G] of the masks that the pass predicts, NaN elsewhere; `best`: of those after the block.
  std::vector<float> answer_confidence(const BlockPrediction& prediction,
                                       const std::vector<int64_t>& behind, HostCopies& best) const {
    std::vector<float> confidence(static_cast<size_t>(state_.length - state_.prompt_length), kNaN);
    const auto answer = [&](int64_t p) -> float& {
      return confidence[static_cast<size_t>(p - state_.prompt_length)];
    };
    const std::vector<float> own = ranks_of(prediction);
    for (int64_t p = state_.block_start; p < state_.block_end(); ++p) {
      const auto i = static_cast<size_t>(p - state_.block_start);
      const bool predicted = !std::isnan(prediction.confidence[i]);
      if (predicted && state_.masked[static_cast<size_t>(p)]) answer(p) = own[i];
    }
    if (behind.empty()) return confidence;
    const std::vector<at::Tensor>& told = best.wait();
    std::vector<float> theirs(told[0].const_data_ptr<float>(),
                              told[0].const_data_ptr<float>() + behind.size());
    if (debiases()) {
      const auto* tokens = told[1].const_data_ptr<int64_t>();
      theirs = debiased({tokens, tokens + behind.size()}, theirs);
    }
    for (size_t i = 0; i < behind.size(); ++i) answer(behind[i]) = theirs[i];
    return confidence;
  }

  bool block_ended() const {
    if (request_.replayed) {
      return replay_cursor_ >= request_.replay.size() ||
             request_.replay[replay_cursor_].block != block_;
    }
    const std::vector<int64_t> now = block_tokens();
    return schedule_spent(options_.unmasking, memory_, step_) ||
           std::count(now.begin(), now.end(), options_.mask_token_id) == 0;
  }

  void end_block() {
    const std::vector<int64_t> now = block_tokens();
    outcome_.masks_left += std::count(now.begin(), now.end(), options_.mask_token_id);
    ++block_;
    step_ = 0;
    if (request_.replayed) {
      if (replay_cursor_ >= request_.replay.size()) outcome_.reason = FinishReason::replayed;
      return;
    }
    const bool stopped = std::any_of(now.begin(), now.end(), [&](int64_t token) {
      const auto& ids = options_.stop_ids;
      return std::find(ids.begin(), ids.end(), token) != ids.end();
    });
    if (stopped) {
      outcome_.reason = FinishReason::stop;
    } else if (state_.block_end() >= state_.length) {
      outcome_.reason = FinishReason::length;
    }
  }

  const BlockDiffusionModel model_;
  const DecodeOptions& options_;
  const DecodeRequest& request_;
  int64_t& next_pass_;
  const DecodeCallbacks& callbacks_;
  AttentionPolicy& policy_;
  std::vector<int64_t> tokens_;  // [L]
  std::unique_ptr<CanvasCache> cache_;
  const StrategyEntry& strategy_;
  CanvasKeys keys_;
  CanvasSeams seams_;
  CanvasState state_;
  DecodeOutcome outcome_;
  ChoiceMemory memory_;
  std::vector<int64_t> last_input_;  // [B] input of the block's previous step
  int64_t block_ = 0;                // from the prompt's end
  int64_t step_ = 0;                 // denoising steps done in this block
  size_t replay_cursor_ = 0;
};

}  // namespace

DecodeOutcome decode_canvas(const BlockDiffusionModel& model, AttentionPolicy& policy,
                            const DecodeOptions& options, const DecodeRequest& request,
                            int64_t& next_pass, const DecodeCallbacks& callbacks) {
  return CanvasDecoder(model, policy, options, request, next_pass, callbacks).run();
}

}  // namespace blockscope
