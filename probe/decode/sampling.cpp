#include "probe/decode/sampling.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "decode_record/base/error.h"
#include "kernels/row_ops.h"
#include "probe/model/device.h"
#include "probe/strategies/strategy_table.h"

namespace blockscope {
namespace {

uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31U);
}

/// Logits divided by the temperature, as in the official sampler. If two different logits would
/// both become infinite, their distances from the largest one are divided instead.
at::Tensor divided(const at::Tensor& rows, double temperature) {
  constexpr double kSmall = 1e-6;
  if (temperature >= kSmall) return rows / temperature;
  return (rows - rows.amax(-1, /*keepdim=*/true))
      .to(at::kDouble)
      .div(temperature)
      .clamp_min(static_cast<double>(std::numeric_limits<float>::lowest()))
      .to(at::kFloat);
}

/// Sets every logit outside top-k and top-p to -inf; logits [rows, V] float32.
at::Tensor filter_logits(at::Tensor logits, const SamplingOptions& options) {
  constexpr double kMinusInf = -std::numeric_limits<double>::infinity();
  if (options.top_k > 0 && options.top_k < logits.size(-1)) {
    const at::Tensor kth =
        std::get<0>(logits.topk(options.top_k, -1)).narrow(-1, options.top_k - 1, 1);
    logits = logits.masked_fill(logits < kth, kMinusInf);
  }
  if (options.top_p < 1.0) {
    const auto [sorted, order] = logits.sort(/*stable=*/true, -1, /*descending=*/true);
    const at::Tensor sorted_probs = at::softmax(sorted, -1);
    // A token is dropped when the mass before it already exceeds p; the best one always stays.
    const at::Tensor drop = (sorted_probs.cumsum(-1) - sorted_probs) > options.top_p;
    logits = logits.masked_fill(at::zeros_like(drop).scatter(-1, order, drop), kMinusInf);
  }
  return logits;
}

/// The token whose cumulative probability interval holds u.
int64_t inverse_cdf(const float* probability, int64_t vocab, double u) {
  double sum = 0.0;
  int64_t last = 0;
  for (int64_t token = 0; token < vocab; ++token) {
    if (probability[token] <= 0.0F) continue;
    sum += static_cast<double>(probability[token]);
    last = token;
    if (u < sum) return token;
  }
  return last;  // u is in the rounding gap below 1
}

/// The same for every row on a device, without waiting for it: probs [R, V], u [R].
at::Tensor inverse_cdf_there(const at::Tensor& probs, const std::vector<double>& u) {
  const at::Tensor draws = on_device(at::tensor(u, at::kDouble), probs.device()).unsqueeze(-1);
  const at::Tensor sums = probs.cumsum(-1, at::kDouble);
  const at::Tensor found = at::searchsorted(sums, draws, /*out_int32=*/false, /*right=*/true);
  const int64_t vocab = probs.size(-1);
  const at::Tensor last = (vocab - 1) - probs.gt(0.0).to(at::kInt).flip(-1).argmax(-1, true);
  return at::minimum(found, last).squeeze(-1);
}

at::Tensor draw_tokens(const at::Tensor& logits, const SamplingOptions& options,
                       const std::vector<StreamId>& streams, int64_t block_length) {
  const at::Tensor probs = at::softmax(filter_logits(logits, options), -1).contiguous();
  std::vector<double> u(static_cast<size_t>(probs.size(0)));
  for (int64_t row = 0; row < probs.size(0); ++row) {
    const auto& stream = streams[static_cast<size_t>(row / block_length)];
    u[static_cast<size_t>(row)] = uniform_draw(options.seed, stream, row % block_length);
  }
  if (!probs.is_cpu()) return inverse_cdf_there(probs, u);
  at::Tensor tokens = at::empty({probs.size(0)}, at::kLong);
  const int64_t vocab = probs.size(-1);
  for (int64_t row = 0; row < probs.size(0); ++row) {
    tokens.data_ptr<int64_t>()[row] = inverse_cdf(probs.const_data_ptr<float>() + row * vocab,
                                                  vocab, u[static_cast<size_t>(row)]);
  }
  return tokens;
}

/// Scores [rows] float32 of probabilities [rows, V]; undefined if the confidence is the score.
at::Tensor scores_of(const at::Tensor& probs, RankBy rank_by) {
  switch (rank_by) {
    case RankBy::kConfidence:
      return {};
    case RankBy::kMargin: {
      const at::Tensor two = std::get<0>(probs.topk(std::min<int64_t>(2, probs.size(-1)), -1));
      return two.select(-1, 0) - two.select(-1, two.size(-1) - 1);
    }
    case RankBy::kNegativeEntropy:
      return (probs * (probs + 1e-10).log()).sum(-1);
  }
  return {};
}

template <typename Element>
std::vector<Element> slice(const at::Tensor& flat, int64_t begin, int64_t count) {
  const Element* data = flat.const_data_ptr<Element>() + begin;
  return {data, data + count};
}

}  // namespace

void check_sampling_options(const SamplingOptions& options) {
  if (!(options.temperature >= 0.0) || !std::isfinite(options.temperature)) {
    throw UsageError(fmt::format("temperature: expected a finite number >= 0 (0 is greedy), got {}",
                                 options.temperature));
  }
  if (options.top_k < 0) {
    throw UsageError(fmt::format("top k: expected 0 (off) or more, got {}", options.top_k));
  }
  if (!(options.top_p > 0.0 && options.top_p <= 1.0)) {
    throw UsageError(fmt::format("top p: expected a number in (0, 1], got {}", options.top_p));
  }
}

double uniform_draw(uint64_t seed, const StreamId& stream, int64_t position) {
  uint64_t state = mix(seed);
  for (const uint64_t part :
       {stream.prompt_hash, static_cast<uint64_t>(stream.block), static_cast<uint64_t>(stream.step),
        static_cast<uint64_t>(position)}) {
    state = mix(state ^ part);
  }
  return static_cast<double>(state >> 11U) * 0x1.0p-53;
}

PredictionNeeds prediction_needs(const UnmaskingOptions& options) {
  const StrategyEntry& strategy = strategy_entry(options);
  return {strategy.entropy, strategy.heeds("rank_by") ? options.rank_by : RankBy::kConfidence,
          strategy.distributions};
}

bool best_alone(const SamplingOptions& options, const PredictionNeeds& needs) {
  const bool undivided = options.temperature == 0.0 || options.temperature == 1.0;
  const bool greedy = options.temperature == 0.0 || options.top_k == 1;
  return undivided && greedy && !needs.entropy && !needs.distributions &&
         needs.rank_by == RankBy::kConfidence;
}

std::vector<BlockPrediction> best_predictions(const at::Tensor& logits,
                                              const std::vector<std::vector<bool>>& predicted) {
  const BestTokens best = best_tokens(logits);
  std::vector<BlockPrediction> predictions;
  size_t row = 0;
  for (const std::vector<bool>& positions : predicted) {
    BlockPrediction& out = predictions.emplace_back();
    out.top1.assign(positions.size(), -1);
    out.top1_confidence.assign(positions.size(), std::numeric_limits<float>::quiet_NaN());
    for (size_t p = 0; p < positions.size(); ++p) {
      if (!positions[p]) continue;
      out.top1[p] = best.token[row];
      out.top1_confidence[p] = best.probability[row];
      ++row;
    }
    out.token = out.top1;
    out.confidence = out.top1_confidence;
  }
  return predictions;
}

at::Tensor best_scores(const at::Tensor& logits, RankBy rank_by) {
  if (rank_by != RankBy::kConfidence) {
    return scores_of(at::softmax(logits.to(at::kFloat), -1), rank_by);
  }
  if (logits.is_cpu()) return at::tensor(best_tokens(logits).probability);
  const at::Tensor rows = logits.to(at::kFloat);
  return (rows.amax(-1) - at::logsumexp(rows, {-1})).exp();  // as best_tokens does on a device
}

std::vector<BlockPrediction> predict_tokens(const at::Tensor& logits,
                                            const SamplingOptions& options,
                                            const std::vector<StreamId>& streams,
                                            const PredictionNeeds& needs,
                                            at::Tensor* distributions) {
  const int64_t sequences = logits.size(0);
  const int64_t block_length = logits.size(1);
  if (best_alone(options, needs)) {
    const std::vector<bool> all(static_cast<size_t>(block_length), true);
    return best_predictions(logits.flatten(0, 1), std::vector(static_cast<size_t>(sequences), all));
  }
  at::Tensor rows = logits.reshape({sequences * block_length, -1}).to(at::kFloat);
  // Computed before the temperature, as a division may round two logits to the same number.
  const at::Tensor top1 = rows.argmax(-1);
  const bool greedy = options.temperature == 0.0 || options.top_k == 1;
  if (options.temperature != 0.0 && options.temperature != 1.0) {
    rows = divided(rows, options.temperature);
  }
  const at::Tensor probs = at::softmax(needs.distributions ? rows.to(at::kDouble) : rows, -1);
  const at::Tensor tokens = greedy ? top1 : draw_tokens(rows, options, streams, block_length);
  const at::Tensor chosen = probs.gather(-1, tokens.unsqueeze(-1)).contiguous();
  const at::Tensor confidence = chosen.to(at::kFloat);
  const at::Tensor top1_confidence =
      probs.gather(-1, top1.unsqueeze(-1)).to(at::kFloat).contiguous();
  at::Tensor score = needs.distributions ? chosen : scores_of(probs, needs.rank_by);
  if (score.defined()) score = score.to(at::kDouble);
  if (needs.distributions && distributions != nullptr) *distributions = probs.view(logits.sizes());
  at::Tensor entropy;
  if (needs.entropy) {
    const at::Tensor clamped = probs.clamp_min(1e-12);
    entropy = (clamped * clamped.log()).sum(-1).neg();
  }
  const std::vector<at::Tensor> told =
      on_host(std::vector{tokens, confidence, top1, top1_confidence, entropy, score});
  std::vector<BlockPrediction> predictions(static_cast<size_t>(sequences));
  for (int64_t s = 0; s < sequences; ++s) {
    BlockPrediction& out = predictions[static_cast<size_t>(s)];
    const int64_t begin = s * block_length;
    out.token = slice<int64_t>(told[0], begin, block_length);
    out.confidence = slice<float>(told[1], begin, block_length);
    out.top1 = slice<int64_t>(told[2], begin, block_length);
    out.top1_confidence = slice<float>(told[3], begin, block_length);
    if (told[4].defined()) out.entropy = slice<float>(told[4], begin, block_length);
    if (told[5].defined()) out.score = slice<double>(told[5], begin, block_length);
  }
  return predictions;
}

}  // namespace blockscope
