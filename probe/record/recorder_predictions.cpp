// A step's predictions for the positions of its block, and their distance from those of the block's
// first step.
#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "decode_record/base/nan.h"
#include "probe/record/recorder.h"

namespace blockscope {
void Recorder::on_logits(const PassContext& context, const std::vector<int64_t>& slots,
                         const at::Tensor& logits) {
  if (!reads_logits(context)) return;
  for (size_t i = 0; i < slots.size(); ++i) {
    const size_t s = static_cast<size_t>(slots[i]);
    const SequencePass& pass = context.sequences[s];
    if (!traced(pass)) continue;
    compare_prediction(s, pass, PredictionRows(logits.select(0, static_cast<int64_t>(i))));
  }
}

void Recorder::on_masked_logits(const PassContext& context, const std::vector<int64_t>& slots,
                                const std::vector<std::vector<bool>>& predicted,
                                const at::Tensor& logits) {
  if (!reads_logits(context)) return;
  int64_t begin = 0;
  for (size_t i = 0; i < slots.size(); ++i) {
    const size_t s = static_cast<size_t>(slots[i]);
    const int64_t count = std::count(predicted[i].begin(), predicted[i].end(), true);
    const at::Tensor rows = logits.narrow(0, begin, count);
    begin += count;
    const SequencePass& pass = context.sequences[s];
    if (traced(pass)) compare_prediction(s, pass, PredictionRows(rows, predicted[i]));
  }
}

void Recorder::compare_prediction(size_t index, const SequencePass& pass,
                                  const PredictionRows& rows) {
  Slot& slot = slot_at(index);
  if (pass.first_step()) {
    slot.first_prediction = FirstPrediction(rows);
  } else if (slot.first_prediction.defined()) {
    when_on_host(index, {masked_kl(slot.first_prediction, rows, pass.masked)},
                 [this, index](const HostTensors& known) {
                   const auto* kl = known[0].const_data_ptr<float>();
                   slot_at(index).floats[Field::prediction_kl_step1].assign(kl,
                                                                            kl + known[0].numel());
                 });
  }
}

void Recorder::add_prediction(const SequencePass& pass, const StepDecision& decision,
                              TraceRow& row) const {
  std::vector<int32_t> tokens(decision.prediction.top1.begin(), decision.prediction.top1.end());
  std::vector<float> confidence = decision.prediction.top1_confidence;
  // If the LM head can't leave decided positions out, their predictions are known anyway.
  for (size_t p = 0; p < pass.masked.size() && !options_.every_prediction; ++p) {
    if (pass.masked[p]) continue;
    tokens[p] = -1;
    confidence[p] = kNaN;
  }
  row.arrays.push_back({Field::prediction_token, kAllLayers, make_buffer(std::move(tokens))});
  row.arrays.push_back(
      {Field::prediction_confidence, kAllLayers, make_buffer(std::move(confidence))});
}

void Recorder::add_kl(const StepDecision& decision, TraceRow& row) const {
  std::vector<float> kl(static_cast<size_t>(options_.meta.block_length), kNaN);
  for (size_t p = 0; p < std::min(kl.size(), decision.prediction.kl.size()); ++p) {
    kl[p] = static_cast<float>(decision.prediction.kl[p]);
  }
  row.arrays.push_back({Field::prediction_kl, kAllLayers, make_buffer(std::move(kl))});
}

void Recorder::add_verdict(const DraftVerdict& verdict, TraceRow& row) {
  const auto ints = [&](Field field, const std::vector<int64_t>& values) {
    row.arrays.push_back(
        {field, kAllLayers, make_buffer(std::vector<int32_t>(values.begin(), values.end()))});
  };
  const auto floats = [&](Field field, const std::vector<float>& values) {
    row.arrays.push_back({field, kAllLayers, make_buffer(values)});
  };
  ints(Field::draft_accepted, {verdict.accepted});
  ints(Field::draft_token, verdict.token);
  floats(Field::draft_confidence, verdict.confidence);
  ints(Field::draft_target_token, verdict.target_token);
  ints(Field::target_rank_under_draft, verdict.target_rank_under_draft);
  floats(Field::target_probability_under_draft, verdict.target_probability_under_draft);
  ints(Field::drafted_rank_under_target, verdict.drafted_rank_under_target);
  floats(Field::drafted_probability_under_target, verdict.drafted_probability_under_target);
  floats(Field::draft_entropy, verdict.draft_entropy);
  floats(Field::draft_target_entropy, verdict.target_entropy);
  if (!verdict.candidates) return;
  ints(Field::candidate_token, verdict.candidates->token);
  floats(Field::candidate_probability, verdict.candidates->probability);
  floats(Field::candidate_score, verdict.candidates->score);
  ints(Field::candidate_chosen, verdict.candidates->chosen);
  ints(Field::candidate_target, verdict.candidates->target);
}

}  // namespace blockscope
