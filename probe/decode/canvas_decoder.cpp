#include "probe/decode/canvas_decoder.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "decode_record/base/nan.h"
#include "probe/decode/canvas_seams.h"
#include "probe/decode/pass_graphs.h"
#include "probe/decode/sequence_state.h"
#include "probe/decode/slot_loop.h"
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

class CanvasLoop final : public SlotLoop<SequenceState> {
 public:
  CanvasLoop(const BlockDiffusionModel& model, AttentionPolicy& policy,
             const DecodeOptions& options, const DecodeRequest& request, int64_t& next_pass,
             const DecodeCallbacks& callbacks)
      : SlotLoop(next_pass, callbacks),
        model_(model.for_longest_sequence(longest_sequence({request}, options))),
        options_(options),
        policy_(policy),
        cache_(cache_entry(options.cache).make(options.cache)),
        strategy_(strategy_entry(options.unmasking)),
        keys_(canvas_shape(model.config(), options, longest_sequence({request}, options)),
              model.dtype(), model.device()),
        seams_(policy, *cache_, keys_, watcher_, options.shadow),
        graphs_(model_, options.graphs) {
    active_.push_back(initial_state(request, options));
    canvas_.prompt_length = std::ssize(request.prompt);
    canvas_.length = keys_.shape().length;
    canvas_.block_length = options.block_length();
    canvas_.logit_shift = model.config().logit_shift;
    canvas_.tokens = &state().tokens;
  }

 private:
  /// The rows of a pass whose logits are read, by their place among the pass's rows.
  struct PredictingRows {
    std::vector<int64_t> index;   // [B + N]: for the block's positions, then for `behind`; any row
                                  // of the pass for a position without one
    std::vector<bool> exists;     // [B] whether the position has a row
    std::vector<int64_t> behind;  // [N] masks after the block, if strategy or cache needs them
  };

  SequenceState& state() { return active_.front(); }
  const SequenceState& state() const { return active_.front(); }

  void leave(int64_t slot) override { policy_.remove(slot); }

  /// One pass and its decision.
  void step() override {
    const PassContext context{next_pass_++, {plan()}};
    const SequencePass& pass = context.sequences.front();
    PassResult result{context, canvas_.block_length, canvas_.block_start};
    {
      const UnwatchedStopwatch watch(result.pass_ns, watcher_);
      PredictingRows predicting = rows_that_predict();
      const at::Tensor hidden = forward(context, predicting);
      std::vector<StepInput> inputs{step_input(state(), pass, options_)};
      const at::Tensor logits = predict(hidden, predicting, inputs.front());
      HostCopies behind = behind_confidence(inputs.front());
      show_logits(watcher_, context, {0}, inputs, logits);
      if (options_.shadow) show_staleness(context);
      {
        const Stopwatch deciding(result.deciding_ns);
        result.decisions = decide_tokens(options_, logits, inputs);
      }
      result.rows_read = {
          policy_.rows_read(0, std::count(pass.computed.begin(), pass.computed.end(), true))};
      take_reads(state(), result.rows_read.front());
      take(pass, result.decisions.front(), predicting, behind);
    }
    result.computed_rows = seams_.computed_rows();
    result.attention_ns = seams_.attention_ns();
    result.work = seams_.work();
    report(result);
  }

  /// The next pass; the cache names its rows.
  SequencePass plan() {
    if (state().step == 0) {
      canvas_.block_start = block_start(canvas_.prompt_length, state().block, options_);
      keys_.begin_block(canvas_.block_start);
    }
    SequencePass pass = plan_pass(state(), options_, canvas_.length - canvas_.block_length);
    canvas_.step = pass.step;
    canvas_.run_step = pass.run_step;
    read_masks();
    rows_ = cache_->rows(canvas_);
    for (int64_t p = canvas_.block_start; p < canvas_.block_end(); ++p) {
      pass.computed.push_back(std::binary_search(rows_.begin(), rows_.end(), p));
    }
    return pass;
  }

  void read_masks() {
    canvas_.masked.clear();
    for (const int64_t token : state().tokens) {
      canvas_.masked.push_back(token == options_.mask_token_id);
    }
  }

  /// The final hidden states of the pass's rows, or of the rows that are read; then those of a
  /// shadow block. `predicting` becomes places among them.
  at::Tensor forward(const PassContext& context, PredictingRows& predicting) {
    std::vector<int64_t> positions = rows_;
    std::vector<int64_t> ids;
    for (const int64_t row : rows_) ids.push_back(state().tokens[static_cast<size_t>(row)]);
    const int64_t shadow_rows = looks_twice() ? canvas_.block_length : 0;
    for (int64_t i = 0; i < shadow_rows; ++i) {
      ids.push_back(options_.mask_token_id);
      positions.push_back(canvas_.block_start + i);
    }
    std::optional<at::Tensor> needed;
    if (shadow_rows == 0 && !cache_->keeps_outputs()) needed = needed_rows(predicting);
    seams_.begin_pass(context, rows_, shadow_rows, needed);
    at::Tensor hidden =
        forward_rows(at::tensor(ids, at::kLong).unsqueeze(0),
                     at::tensor(positions, at::kLong).unsqueeze(0), shadow_rows, needed);
    seams_.end_pass();
    return hidden;
  }

  at::Tensor forward_rows(const at::Tensor& ids, const at::Tensor& positions, int64_t shadow_rows,
                          const std::optional<at::Tensor>& needed) {
    const auto of_cache = cache_->repeats();
    const auto of_policy = policy_.repeats();
    if (shadow_rows > 0 || !of_cache || !of_policy) {
      return model_.forward(ids, positions, seams_);
    }
    std::vector<int64_t> same{canvas_.block_start, std::ssize(*of_cache)};
    same.insert(same.end(), of_cache->begin(), of_cache->end());
    same.insert(same.end(), of_policy->begin(), of_policy->end());
    if (needed) {
      const auto* first = needed->const_data_ptr<int64_t>();
      same.insert(same.end(), first, first + needed->numel());
    }
    return graphs_.repeatable(ids, positions, same, seams_);
  }

  /// The logits that the step decides from. Fills `input` with what else the step reads.
  at::Tensor predict(const at::Tensor& hidden, PredictingRows& predicting, StepInput& input) {
    input.predicted = predicting.exists;
    input.first_only = cache_->decides_first_position_only(canvas_);
    if (looks_twice()) {
      input.shadow =
          model_.logits(hidden.narrow(1, std::ssize(rows_), canvas_.block_length)).squeeze(0);
    }
    const bool masks = predicts_masks_alone();
    if (masks) leave_decided_out(predicting, input);
    const at::Tensor all =
        model_.logits(hidden.index_select(1, index_on(predicting.index, hidden.device())));
    if (masks) return all[0];
    input.behind = predicting.behind;
    input.behind_logits = all[0].narrow(0, canvas_.block_length, std::ssize(predicting.behind));
    return all.narrow(1, 0, canvas_.block_length);
  }

  void show_staleness(const PassContext& context) {
    watcher_.show([&](DecodeObserver& observer) {
      observer.on_staleness(context, measure_staleness(model_, state().tokens, keys_, seams_));
    });
  }

  /// Whether the pass has WINO's shadow block. A replay already knows what is taken back.
  bool looks_twice() const { return strategy_.second_look && !state().request->replayed; }

  PredictingRows rows_that_predict() const {
    const auto row_of = [&](int64_t p) -> std::optional<int64_t> {
      const auto found = std::lower_bound(rows_.begin(), rows_.end(), p - canvas_.logit_shift);
      if (found == rows_.end() || *found != p - canvas_.logit_shift) return std::nullopt;
      return found - rows_.begin();
    };
    PredictingRows result;
    for (int64_t p = canvas_.block_start; p < canvas_.block_end(); ++p) {
      const auto row = row_of(p);
      result.index.push_back(row.value_or(0));
      result.exists.push_back(row.has_value());
    }
    const bool moved = strategy_.remembers;
    if (!moved && !cache_->wants_answer_confidence()) return result;
    for (int64_t p = canvas_.block_end(); p < canvas_.length; ++p) {
      const auto row = row_of(p);
      if (!row || !canvas_.masked[static_cast<size_t>(p)]) continue;
      result.index.push_back(*row);
      result.behind.push_back(p);
    }
    return result;
  }

  /// Whether nothing reads the predictions of decided positions.
  bool predicts_masks_alone() const {
    return masks_alone(options_, model_, watcher_) && !looks_twice() &&
           !cache_->wants_answer_confidence();
  }

  /// Keeps only the predicting rows of the block's masks.
  static void leave_decided_out(PredictingRows& predicting, StepInput& input) {
    std::vector<int64_t> rows;
    for (size_t p = 0; p < input.predicted.size(); ++p) {
      input.predicted[p] = input.predicted[p] && input.pass.masked[p];
      if (input.predicted[p]) rows.push_back(predicting.index[p]);
    }
    predicting.index = rows;
  }

  /// The rows of the pass whose last hidden states are read: the predicting rows, and the block's
  /// own, which observers see. `predicting` becomes places among them.
  at::Tensor needed_rows(PredictingRows& predicting) const {
    std::vector<int64_t> needed = predicting.index;
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (rows_[i] < canvas_.block_start || rows_[i] >= canvas_.block_end()) continue;
      needed.push_back(static_cast<int64_t>(i));
    }
    std::sort(needed.begin(), needed.end());
    needed.erase(std::unique(needed.begin(), needed.end()), needed.end());
    for (int64_t& row : predicting.index) {
      row = std::lower_bound(needed.begin(), needed.end(), row) - needed.begin();
    }
    return at::tensor(needed, at::kLong);
  }

  /// The scores [N] of the best tokens of the masks after the block, if the cache needs them, and
  /// the tokens, if the strategy scores them. Waiting for them costs nothing: the step's decision
  /// waits for later work of the same stream.
  HostCopies behind_confidence(const StepInput& input) const {
    if (!cache_->wants_answer_confidence() || input.behind.empty()) return {};
    std::vector best{
        best_scores(input.behind_logits, prediction_needs(options_.unmasking).rank_by)};
    if (debiases()) best.push_back(input.behind_logits.argmax(-1));
    return HostCopies(best);
  }

  void take(const SequencePass& pass, const StepDecision& decision,
            const PredictingRows& predicting, HostCopies& behind) {
    CanvasFeedback feedback;
    if (cache_->wants_answer_confidence()) {
      feedback.confidence = answer_confidence(decision.prediction, predicting.behind, behind);
    }
    for (const int64_t p : decision.selected) {
      feedback.selected.push_back(canvas_.block_start + p);
    }
    advance(state(), pass, decision, options_);
    read_masks();
    cache_->end_step(canvas_, feedback);
  }

  bool debiases() const { return static_cast<bool>(strategy_.answer_scores); }

  /// d2Cache's confidence: the value that the strategy ranks by, without the certainty density and
  /// without the weight of the place in the block (`generation/vanilla.py:generate_step`).
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

  /// [G] confidence of the masks that the pass predicts, NaN elsewhere; `best`: from
  /// behind_confidence().
  std::vector<float> answer_confidence(const BlockPrediction& prediction,
                                       const std::vector<int64_t>& behind, HostCopies& best) const {
    std::vector<float> confidence(static_cast<size_t>(canvas_.length - canvas_.prompt_length),
                                  kNaN);
    const auto answer = [&](int64_t p) -> float& {
      return confidence[static_cast<size_t>(p - canvas_.prompt_length)];
    };
    const std::vector<float> own = ranks_of(prediction);
    for (int64_t p = canvas_.block_start; p < canvas_.block_end(); ++p) {
      const auto i = static_cast<size_t>(p - canvas_.block_start);
      const bool predicted = !std::isnan(prediction.confidence[i]);
      if (predicted && canvas_.masked[static_cast<size_t>(p)]) answer(p) = own[i];
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

  const BlockDiffusionModel model_;
  const DecodeOptions& options_;
  AttentionPolicy& policy_;
  std::unique_ptr<CanvasCache> cache_;
  const StrategyEntry& strategy_;
  CanvasKeys keys_;
  CanvasSeams seams_;
  PassGraphs graphs_;  // they read the model and the keys
  CanvasState canvas_;
  std::vector<int64_t> rows_;  // rows of the current pass: absolute positions, ascending
};

}  // namespace

std::vector<DecodeOutcome> decode_canvas(const BlockDiffusionModel& model, AttentionPolicy& policy,
                                         const DecodeOptions& options, const DecodeRequest& request,
                                         int64_t& next_pass, const DecodeCallbacks& callbacks) {
  return CanvasLoop(model, policy, options, request, next_pass, callbacks).run();
}

}  // namespace blockscope
