#include "probe/decode/step_decision.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "decode_record/base/error.h"
#include "probe/caches/certainty_density.h"
#include "probe/decode/canvas_decision.h"
#include "probe/model/device.h"
#include "probe/strategies/strategy_table.h"

namespace blockscope {
namespace {

/// Factors of the block's scores; empty where the run has none.
std::vector<float> density_of(const DecodeOptions& options, const StepInput& input, int64_t rows) {
  if (options.autoregressive() || options.unmasking.density_sigma == 0.0) return {};
  std::vector<bool> decided;
  for (size_t i = static_cast<size_t>(input.prompt_length); i < input.tokens.size(); ++i) {
    decided.push_back(input.tokens[i] != options.mask_token_id);
  }
  return certainty_density(decided, options.unmasking.density_sigma,
                           {input.pass.block_start - input.prompt_length, rows});
}

/// The pass with only the masks that it predicts and may fill. The others lose their prediction.
SequencePass open_masks(const DecodeOptions& options, const StepInput& input,
                        BlockPrediction& prediction) {
  SequencePass open = input.pass;
  if (options.canvas) open.masked.assign(open.masked.size(), true);  // each step accepts anew
  for (size_t p = 0; p < input.predicted.size(); ++p) {
    if (input.predicted[p]) continue;
    open.masked[p] = false;
    prediction.token[p] = prediction.top1[p] = -1;
    prediction.confidence[p] = prediction.top1_confidence[p] =
        std::numeric_limits<float>::quiet_NaN();
  }
  for (size_t p = 0; p < input.open.size(); ++p) {
    if (!input.open[p]) open.masked[p] = false;
  }
  return open;
}

/// Masks that may be filled, but that this pass does not predict.
int64_t unseen_masks(const StepInput& input) {
  int64_t count = 0;
  for (size_t p = 0; p < input.predicted.size(); ++p) {
    const bool open = input.open.empty() || input.open[p];
    count += input.pass.masked[p] && open && !input.predicted[p] ? 1 : 0;
  }
  return count;
}

StepDecision first_token(const DecodeOptions& options, const SequencePass& pass,
                         BlockPrediction prediction) {
  StepDecision decision;
  decision.prediction = std::move(prediction);
  if (pass.masked.front()) decision.selected = {0};
  if (decision.prediction.token.front() != options.mask_token_id) {
    decision.transferred = decision.selected;
  }
  decision.kept_masks = std::ssize(decision.selected) - std::ssize(decision.transferred);
  return decision;
}

void check_finite(const StepInput& input, const BlockPrediction& prediction) {
  const SequencePass& pass = input.pass;
  for (size_t p = 0; p < prediction.top1_confidence.size(); ++p) {
    if (!input.predicted.empty() && !input.predicted[p]) continue;
    if (std::isfinite(prediction.top1_confidence[p])) continue;
    throw CheckpointError(fmt::format(
        "sequence {}, block {}, step {}, position {} of the block: expected finite logits, got "
        "NaN or infinity. HINT: the weights contain such values (a failed conversion), or the "
        "model overflows its type: try float32",
        pass.sequence, pass.block, pass.step, p));
  }
}

StepDecision choose_tokens(const DecodeOptions& options, const SequencePass& pass,
                           BlockPrediction prediction, const std::vector<float>& density,
                           int64_t chosen, int64_t unseen) {
  StepDecision decision;
  decision.prediction = std::move(prediction);
  if (options.autoregressive()) {
    decision.transferred = {0};
    return decision;
  }
  decision.transferred = select_transfers(options.unmasking, pass.step - 1, decision.prediction,
                                          pass.masked, density, chosen, unseen);
  decision.selected = decision.transferred;
  std::erase_if(decision.transferred, [&](int64_t p) {
    return decision.prediction.token[static_cast<size_t>(p)] == options.mask_token_id;
  });
  decision.kept_masks = std::ssize(decision.selected) - std::ssize(decision.transferred);
  return decision;
}

/// `masked`: positions that the step could decide. A prediction of [MASK] decides nothing.
float sure_left(std::vector<bool> masked, const StepDecision& decision, int64_t mask_token_id) {
  for (const int64_t p : decision.transferred) masked[static_cast<size_t>(p)] = false;
  std::vector<float> left;
  for (size_t p = 0; p < masked.size(); ++p) {
    if (!masked[p] || decision.prediction.top1[p] == mask_token_id) continue;
    left.push_back(decision.prediction.top1_confidence[p]);
  }
  if (left.empty()) return 0.0F;
  std::sort(left.begin(), left.end(), std::greater<>());
  const size_t wanted = std::max<size_t>(decision.transferred.size(), 1);
  return left[std::min(wanted, left.size()) - 1];
}

/// The moves of a step, and how many of the positions that go hold a token.
void take_moves(const std::vector<int64_t>& inserted, const std::vector<int64_t>& deleted,
                const StepInput& input, const DecodeOptions& options, StepDecision& decision) {
  decision.inserted = inserted;
  decision.deleted = deleted;
  if (deleted.empty()) return;
  const auto begin = input.tokens.begin() + input.pass.block_start;
  std::vector<int64_t> block(begin, begin + options.block_length());
  write_decision(decision, options.mask_token_id, block);
  decision.deleted_tokens =
      std::ranges::count_if(block, [&](int64_t token) { return token != options.mask_token_id; });
  move_tokens(block, inserted, deleted, options.mask_token_id);
  decision.deleted_tokens -=
      std::ranges::count_if(block, [&](int64_t token) { return token != options.mask_token_id; });
}

/// WINO's narrow out: the tokens of the block that the shadow positions find unlikely.
std::vector<Revocation> revoked_tokens(const DecodeOptions& options, const StepInput& input,
                                       int64_t accepted) {
  const auto begin = input.tokens.begin() + input.pass.block_start;
  const std::vector<int64_t> tokens(begin, begin + options.block_length());
  const at::Tensor now = at::softmax(input.shadow.to(at::kDouble), -1)
                             .gather(1, index_on(tokens, input.shadow.device()).unsqueeze(1));
  const at::Tensor flat = on_host(now.contiguous());
  const std::vector<double> confidence(flat.const_data_ptr<double>(),
                                       flat.const_data_ptr<double>() + flat.numel());
  std::vector<bool> decided = input.pass.masked;
  decided.flip();
  std::vector<Revocation> revoked;
  WinoMemory& memory = input.memory.wino;
  for (const int64_t p : wino_narrow_out(confidence, decided, options.unmasking.threshold_back,
                                         accepted, memory.last_accepted(input.pass.block))) {
    const auto at = static_cast<size_t>(p);
    revoked.push_back({p, tokens[at], static_cast<float>(confidence[at])});
  }
  memory.update(input.pass.block, accepted);
  return revoked;
}

/// Gives a position of the block its most probable token apart from `without`. logits [B, V].
void take_best_without(const at::Tensor& logits, double temperature, size_t position,
                       const std::vector<int64_t>& without, BlockPrediction& prediction) {
  at::Tensor row = logits[static_cast<int64_t>(position)].to(at::kFloat);
  if (temperature > 0.0) row = row / temperature;
  const at::Tensor rest =
      row.index_fill(0, index_on(without, row.device()), -std::numeric_limits<double>::infinity());
  const at::Tensor best = rest.argmax(0);
  prediction.token[position] = best.item<int64_t>();
  prediction.confidence[position] = at::softmax(row, 0).index({best}).item<float>();
}

/// The decision of a strategy that also edits. `logits`: [B, V].
StepDecision edit_tokens(const DecodeOptions& options, const StepInput& input,
                         BlockPrediction prediction, const at::Tensor& logits) {
  const SequencePass& pass = input.pass;
  if (pass.first_step()) input.memory.edit = {};
  const auto begin = input.tokens.begin() + pass.block_start;
  const std::vector<int64_t> tokens(begin, begin + options.block_length());
  std::vector<bool> generated;
  for (int64_t p = 0; p < options.block_length(); ++p) {
    generated.push_back(pass.block_start + p >= input.prompt_length);
  }
  EditStep step{options.unmasking,
                prediction,
                tokens,
                pass.masked,
                generated,
                {options.mask_token_id, options.delete_token_id, options.split_token_id},
                input.memory.edit,
                [&](size_t position, const std::vector<int64_t>& without) {
                  take_best_without(logits, options.sampling.temperature, position, without,
                                    prediction);
                }};
  const EditChoice choice = strategy_entry(options.unmasking).edit(step);
  StepDecision decision;
  decision.selected = choice.selected;
  for (const int64_t p : choice.selected) {
    if (prediction.token[static_cast<size_t>(p)] == options.mask_token_id) continue;
    decision.transferred.push_back(p);
  }
  decision.kept_masks = std::ssize(decision.selected) - std::ssize(decision.transferred);
  for (const int64_t p : choice.edited) {
    const auto at = static_cast<size_t>(p);
    if (prediction.token[at] == options.mask_token_id) {
      decision.revoked.push_back({p, tokens[at], prediction.confidence[at]});
    } else {
      decision.edited.push_back(p);
      decision.transferred.push_back(p);
    }
  }
  std::ranges::sort(decision.transferred);
  decision.prediction = std::move(prediction);
  take_moves(choice.inserted, choice.deleted, input, options, decision);
  return decision;
}

/// KLASS: measures how far each predicted position moved since the step that predicted it last.
/// `distributions` [B, V]: the block's.
void observe_klass(const DecodeOptions& options, const StepInput& input,
                   const at::Tensor& distributions, BlockPrediction& prediction) {
  KlassMemory& memory = input.memory.klass;
  memory.forget_before(input.pass.block_start);
  const auto rows = static_cast<size_t>(distributions.size(0));
  std::vector<int64_t> positions;
  std::vector<int64_t> index;
  for (size_t p = 0; p < rows; ++p) {
    if (!input.predicted.empty() && !input.predicted[p]) continue;
    index.push_back(static_cast<int64_t>(p));
    positions.push_back(input.pass.block_start + static_cast<int64_t>(p));
  }
  std::vector<bool> known;
  for (const int64_t position : positions) known.push_back(memory.known(position));
  const std::vector<double> kl = memory.update(
      positions, distributions.index_select(0, index_on(index, distributions.device())));
  prediction.kl.assign(rows, std::numeric_limits<double>::quiet_NaN());
  prediction.moved = prediction.kl;
  prediction.stable.assign(rows, false);
  const UnmaskingOptions& unmasking = options.unmasking;
  for (size_t i = 0; i < index.size(); ++i) {
    const auto p = static_cast<size_t>(index[i]);
    if (known[i]) prediction.kl[p] = kl[i];
    prediction.moved[p] = kl[i];
    // Nothing is stable at a block's first steps, even with a longer history.
    prediction.stable[p] =
        input.pass.step >= unmasking.kl_history &&
        memory.stable(positions[i], unmasking.kl_threshold, unmasking.kl_history);
  }
  if (input.behind.empty()) return;
  at::Tensor behind;
  SamplingOptions sampling = options.sampling;
  sampling.top_k = 1;  // only the distribution is needed, so no token is drawn
  predict_tokens(input.behind_logits.unsqueeze(0), sampling, {StreamId{}},
                 prediction_needs(unmasking), &behind);
  memory.update(input.behind, behind.squeeze(0));
}

PredictionNeeds needs_of(const DecodeOptions& options) {
  return options.autoregressive() ? PredictionNeeds{} : prediction_needs(options.unmasking);
}

StepDecision replayed_tokens(const ReplayStep& step, const StepInput& input,
                             const DecodeOptions& options, BlockPrediction prediction) {
  StepDecision decision;
  decision.prediction = std::move(prediction);
  decision.kept_masks = step.kept_masks;
  for (size_t i = 0; i < step.positions.size(); ++i) {
    const int64_t position = step.positions[i] - input.pass.block_start;
    const int64_t token = input.tokens[static_cast<size_t>(step.positions[i])];
    if (step.tokens[i] == options.mask_token_id) {
      decision.revoked.push_back({position, token, std::numeric_limits<float>::quiet_NaN()});
      continue;
    }
    decision.transferred.push_back(position);
    if (token == options.mask_token_id) {
      decision.selected.push_back(position);  // a replay does not know chosen [MASK] tokens
    } else {
      decision.edited.push_back(position);
    }
    decision.prediction.token[static_cast<size_t>(position)] = step.tokens[i];
    decision.prediction.confidence[static_cast<size_t>(position)] = step.confidence[i];
  }
  const auto in_block = [&](std::vector<int64_t> positions) {
    for (int64_t& position : positions) position -= input.pass.block_start;
    return positions;
  };
  take_moves(in_block(step.inserted), in_block(step.deleted), input, options, decision);
  return decision;
}

/// The same logits [S, B, V], with NaN at the positions that the pass does not predict.
at::Tensor predicted_logits(const at::Tensor& logits, const std::vector<StepInput>& inputs) {
  at::Tensor shown = logits;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::vector<bool>& predicted = inputs[i].predicted;
    for (size_t p = 0; p < predicted.size(); ++p) {
      if (predicted[p]) continue;
      if (shown.is_same(logits)) shown = logits.clone();
      shown.select(0, static_cast<int64_t>(i))
          .select(0, static_cast<int64_t>(p))
          .fill_(std::numeric_limits<double>::quiet_NaN());
    }
  }
  return shown;
}

/// By sequence, the positions of the logits [R, V] of a pass that predicts masks alone.
std::vector<std::vector<bool>> predicted_by(const std::vector<StepInput>& inputs) {
  std::vector<std::vector<bool>> predicted;
  for (const StepInput& input : inputs) predicted.push_back(input.predicted);
  return predicted;
}

}  // namespace

bool masks_alone(const DecodeOptions& options) {
  return !options.autoregressive() && !strategy_entry(options.unmasking).edit &&
         best_alone(options.sampling, needs_of(options));
}

bool masks_alone(const DecodeOptions& options, const BlockDiffusionModel& model,
                 const Watcher& watcher) {
  const DecodeObserver* observer = watcher.observer();
  return (observer == nullptr || !observer->wants_every_prediction()) && masks_alone(options) &&
         model.logits_stand_alone();
}

void write_decision(const StepDecision& decision, int64_t mask_token_id, std::span<int64_t> block) {
  for (const int64_t p : decision.transferred) {
    block[static_cast<size_t>(p)] = decision.prediction.token[static_cast<size_t>(p)];
  }
  for (const Revocation& revoked : decision.revoked) {
    block[static_cast<size_t>(revoked.position)] = mask_token_id;
  }
}

bool schedule_spent(const UnmaskingOptions& options, const ChoiceMemory& memory, int64_t steps) {
  if (options.quota != Quota::kCarry) return steps >= options.denoising_steps;
  const bool chosen_all = memory.chosen >= options.block_length;
  return steps >= (chosen_all ? options.denoising_steps : most_steps(options));
}

void show_logits(Watcher& watcher, const PassContext& context, const std::vector<int64_t>& slots,
                 const std::vector<StepInput>& inputs, const at::Tensor& logits) {
  if (watcher.observer() == nullptr || !watcher.observer()->wants_logits()) return;
  watcher.show([&](DecodeObserver& observer) {
    if (logits.dim() == 2) {
      observer.on_masked_logits(context, slots, predicted_by(inputs), logits);
    } else {
      observer.on_logits(context, slots, predicted_logits(logits, inputs));
    }
  });
}

std::vector<StepDecision> decide_tokens(const DecodeOptions& options, const at::Tensor& logits,
                                        const std::vector<StepInput>& inputs) {
  std::vector<StreamId> streams;
  for (const StepInput& input : inputs) {
    streams.push_back({input.pass.prompt_hash, input.pass.block, input.pass.step});
  }
  const UnmaskingOptions& unmasking = options.unmasking;
  at::Tensor distributions;
  std::vector<BlockPrediction> predictions;
  if (logits.dim() == 2) {
    predictions = best_predictions(logits, predicted_by(inputs));
  } else {
    predictions =
        predict_tokens(logits, options.sampling, streams, needs_of(options), &distributions);
  }
  std::vector<StepDecision> decisions;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const StepInput& input = inputs[i];
    BlockPrediction& prediction = predictions[i];
    const int64_t block_rows = std::ssize(prediction.token);
    check_finite(input, prediction);
    if (strategy_entry(unmasking).remembers) {
      observe_klass(options, input, distributions[static_cast<int64_t>(i)], prediction);
    }
    int64_t& chosen = input.memory.chosen;
    if (input.pass.first_step()) chosen = options.block_length() - input.pass.masks_left;
    const SequencePass open = open_masks(options, input, prediction);
    if (input.replay != nullptr) {
      decisions.push_back(replayed_tokens(*input.replay, input, options, std::move(prediction)));
    } else if (input.first_only) {
      decisions.push_back(first_token(options, open, std::move(prediction)));
    } else if (!options.autoregressive() && strategy_entry(unmasking).edit) {
      decisions.push_back(
          edit_tokens(options, input, std::move(prediction), logits[static_cast<int64_t>(i)]));
    } else {
      decisions.push_back(choose_tokens(options, open, std::move(prediction),
                                        density_of(options, input, block_rows), chosen,
                                        unseen_masks(input)));
      StepDecision& decision = decisions.back();
      if (input.shadow.defined()) {
        decision.revoked = revoked_tokens(options, input, std::ssize(decision.selected));
      }
    }
    if (options.canvas) {
      finish_canvas_step(options, input, logits[static_cast<int64_t>(i)], decisions.back());
    }
    chosen += std::ssize(decisions.back().selected);
    decisions.back().sure_left = sure_left(open.masked, decisions.back(), options.mask_token_id);
  }
  return decisions;
}

}  // namespace blockscope
