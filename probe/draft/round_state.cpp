#include "probe/draft/round_state.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "probe/strategies/block_edit.h"

namespace blockscope {
namespace {

/// The tokens that a replay decided, up to the first missing one. The mask's id is missing only
/// where it takes a token back: a target may decide it like any other token.
std::vector<int64_t> replayed_answer(const DecodeRequest& request, int64_t mask_token_id) {
  constexpr int64_t kMissing = -1;
  std::vector<int64_t> answer(static_cast<size_t>(request.gen_length), kMissing);
  const int64_t prompt_length = std::ssize(request.prompt);
  for (const ReplayStep& step : request.replay) {
    for (size_t i = 0; i < step.positions.size(); ++i) {
      const int64_t at = step.positions[i] - prompt_length;
      if (at < 0 || at >= request.gen_length) continue;
      int64_t& held = answer[static_cast<size_t>(at)];
      held = step.tokens[i] == mask_token_id && held != kMissing ? kMissing : step.tokens[i];
    }
    if (step.deleted.empty()) continue;
    const auto in_answer = [&](std::vector<int64_t> positions) {
      for (int64_t& position : positions) position -= prompt_length;
      return positions;
    };
    move_tokens(answer, in_answer(step.inserted), in_answer(step.deleted), kMissing);
  }
  answer.erase(std::find(answer.begin(), answer.end(), kMissing), answer.end());
  return answer;
}

}  // namespace

RoundState::RoundState(const DecodeRequest& of, int64_t mask_token_id)
    : request(&of),
      mask(mask_token_id),
      prompt_length(std::ssize(of.prompt)),
      end(prompt_length + of.gen_length),
      tokens(of.prompt) {
  outcome.sequence = of.sequence;
  if (!of.replayed) return;
  answer = replayed_answer(of, mask_token_id);
  end = prompt_length + std::ssize(answer);
  if (answer.empty()) outcome.reason = FinishReason::replayed;
}

void RoundState::take_given(int64_t first, const at::Tensor& logits,
                            BlockPrediction& chosen) const {
  for (size_t i = 0; i < chosen.token.size(); ++i) {
    const auto row = static_cast<int64_t>(i);
    const int64_t at = first + row - prompt_length;
    if (at >= std::ssize(answer)) return;
    const int64_t token = answer[static_cast<size_t>(at)];
    if (chosen.token[i] == token) continue;
    chosen.token[i] = token;
    chosen.confidence[i] = logits[row].to(at::kFloat).softmax(-1)[token].item<float>();
  }
}

NextToken RoundState::next(const BlockPrediction& choices, int64_t row) const {
  const auto at = static_cast<size_t>(row);
  return {choices.token[at], choices.confidence[at], std::ssize(tokens)};
}

StepDecision RoundState::decision(const std::vector<int64_t>& predicted,
                                  const std::vector<float>& confidence, int64_t block_length,
                                  int64_t accepted) const {
  StepDecision decision;
  BlockPrediction& prediction = decision.prediction;
  prediction.token = {-1};
  prediction.confidence = {std::numeric_limits<float>::quiet_NaN()};
  prediction.token.insert(prediction.token.end(), predicted.begin(),
                          predicted.begin() + (block_length - 1));
  prediction.confidence.insert(prediction.confidence.end(), confidence.begin(),
                               confidence.begin() + (block_length - 1));
  prediction.top1 = prediction.token;
  prediction.top1_confidence = prediction.confidence;
  // Accepted tokens after the answer's end are not part of it.
  for (int64_t p = 1; p <= accepted && start() + p < end; ++p) decision.transferred.push_back(p);
  return decision;
}

void RoundState::find_end(const std::vector<int64_t>& stop_ids) {
  if (request->replayed) {
    if (std::ssize(tokens) >= end) outcome.reason = FinishReason::replayed;
    return;
  }
  const auto stops = [&](int64_t token) {
    return std::find(stop_ids.begin(), stop_ids.end(), token) != stop_ids.end();
  };
  const auto decided = std::min(std::ssize(tokens), end);
  if (std::any_of(tokens.begin() + prompt_length, tokens.begin() + decided, stops)) {
    outcome.reason = FinishReason::stop;
  } else if (start() >= end) {
    outcome.reason = FinishReason::length;
  }
}

std::vector<int64_t> RoundState::generated() const {
  const auto decided = std::min(std::ssize(tokens), end);
  std::vector<int64_t> result(tokens.begin() + prompt_length, tokens.begin() + decided);
  result.resize(static_cast<size_t>(request->gen_length), mask);
  return result;
}

int64_t longest_end(const std::vector<DecodeRequest>& requests) {
  int64_t longest = 0;
  for (const DecodeRequest& request : requests) {
    longest = std::max(longest, std::ssize(request.prompt) + request.gen_length);
  }
  return longest;
}

}  // namespace blockscope
