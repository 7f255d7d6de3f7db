// The recorder's frames: which positions a pass changed, in positions after the prompt.
#include <algorithm>
#include <map>
#include <utility>

#include "probe/record/recorder.h"

namespace blockscope {

FrameDelta Recorder::first_token_delta(const SequencePass& pass, const PassResult& result,
                                       const NextToken& next) const {
  const int64_t stored = pass.kind == PassKind::prefill
                             ? result.start + result.length
                             : (pass.block + 1) * options_.meta.block_length;
  const int64_t position = next.position >= 0 ? next.position : stored;
  return make_transfer({position - traced_.at(pass.sequence).prompt_length}, {next.token},
                       {next.confidence});
}

int64_t Recorder::frame_origin(const SequencePass& pass) const {
  const int64_t shift = options_.autoregressive ? 1 : 0;
  return pass.block_start + shift - traced_.at(pass.sequence).prompt_length;
}

FrameDelta Recorder::frame_delta(const SequencePass& pass, const StepDecision& decision) const {
  std::vector<int64_t> positions;
  std::vector<int64_t> tokens;
  std::vector<float> confidence;
  const int64_t origin = frame_origin(pass);
  for (const int64_t p : decision.transferred) {
    positions.push_back(origin + p);
    tokens.push_back(decision.prediction.token[static_cast<size_t>(p)]);
    confidence.push_back(decision.prediction.confidence[static_cast<size_t>(p)]);
  }
  FrameDelta delta = make_transfer(std::move(positions), std::move(tokens), std::move(confidence));
  SequenceDelta& row = delta.rows.front();
  for (const int64_t p : decision.inserted) {
    row.insert_index.push_back(origin + p);
    row.insert_src_index.push_back(std::ssize(row.decoded_tokens));
    row.decoded_tokens.push_back(options_.meta.mask_token_id);
    row.confidence.push_back(kUntouchedConfidence);
    row.insert_step.push_back(kUndecodedStep);
  }
  for (const int64_t p : decision.deleted) row.delete_index.push_back(origin + p);
  return delta;
}

/// What a step accepts and the noise that it puts elsewhere, or the first noise of a canvas.
FrameDelta Recorder::canvas_delta(const SequencePass& pass, const StepDecision& decision) {
  TracedSequence& traced = traced_.at(pass.sequence);
  std::map<int64_t, std::pair<int64_t, float>> changes;  // by position
  for (const int64_t p : decision.transferred) {
    const auto at = static_cast<size_t>(p);
    changes[frame_origin(pass) + p] = {decision.prediction.token[at],
                                       decision.prediction.confidence[at]};
  }
  for (const Noise& one : decision.noise) {
    changes[one.position - traced.prompt_length] = {one.token, kUntouchedConfidence};
  }
  std::vector<int64_t> positions;
  std::vector<int64_t> tokens;
  std::vector<float> confidence;
  for (const auto& [position, change] : changes) {
    positions.push_back(position);
    tokens.push_back(change.first);
    confidence.push_back(change.second);
  }
  Frame& frame = traced.canvas;
  const int64_t end = positions.empty() ? 0 : positions.back() + 1;
  if (end > static_cast<int64_t>(frame.gen_length)) {
    frame.gen_length = static_cast<size_t>(end);
    frame.generated_tokens.resize(frame.gen_length, frame.mask_token_id);
    frame.confidence.resize(frame.gen_length, kUntouchedConfidence);
    frame.steps.resize(frame.gen_length, kUndecodedStep);
  }
  FrameDelta delta =
      make_canvas(frame, std::move(positions), std::move(tokens), std::move(confidence));
  apply_delta(frame, delta);
  return delta;
}

}  // namespace blockscope
