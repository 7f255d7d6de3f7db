// See rope.h.
#include "probe/checkpoint/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace blockscope {

namespace {

using Frequencies = std::vector<double>;

constexpr double kMaxStretchedPositions = 0x1.0p40;  // far from overflow, whatever the factor is

Frequencies plain_frequencies(double theta, std::int64_t head_dim) {
  Frequencies result(static_cast<std::size_t>(head_dim / 2));
  for (std::size_t i = 0; i < result.size(); ++i) {
    result[i] = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
  }
  return result;
}

Frequencies dynamic_frequencies(const RopeConfig& rope, std::int64_t head_dim,
                                std::int64_t seq_len) {
  const auto dim = static_cast<double>(head_dim);
  const auto original = static_cast<double>(rope.original_max_position_embeddings);
  const double length = std::max(static_cast<double>(seq_len), original);
  const double growth = rope.factor * length / original - (rope.factor - 1.0);
  return plain_frequencies(rope.theta * std::pow(growth, dim / (dim - 2.0)), head_dim);
}

// YaRN eq. 17: pairs that turn more than beta_fast times over the original length keep their
// frequency. Pairs below beta_slow turns are interpolated. Between them is a linear ramp.
Frequencies yarn_frequencies(const RopeConfig& rope, std::int64_t head_dim) {
  const auto dim = static_cast<double>(head_dim);
  const auto pair_with_turns = [&](double turns) {
    const auto length = static_cast<double>(rope.original_max_position_embeddings);
    return dim * std::log(length / (turns * 2.0 * std::numbers::pi)) / (2.0 * std::log(rope.theta));
  };
  double low = pair_with_turns(rope.beta_fast);
  double high = pair_with_turns(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;  // keeps the ramp's slope finite, as in transformers

  Frequencies result = plain_frequencies(rope.theta, head_dim);
  for (std::size_t i = 0; i < result.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    result[i] = result[i] / rope.factor * ramp + result[i] * (1.0 - ramp);
  }
  return result;
}

double yarn_attention_factor(const RopeConfig& rope) {
  if (rope.attention_factor) return *rope.attention_factor;
  const auto magnitude = [&](double mscale) {
    return rope.factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(rope.factor) + 1.0;
  };
  const double mscale = rope.mscale.value_or(0.0);
  const double all_dim = rope.mscale_all_dim.value_or(0.0);
  if (mscale != 0.0 && all_dim != 0.0) return magnitude(mscale) / magnitude(all_dim);
  return magnitude(1.0);
}

Frequencies llama3_frequencies(const RopeConfig& rope, std::int64_t head_dim) {
  const auto length = static_cast<double>(rope.original_max_position_embeddings);
  Frequencies result = plain_frequencies(rope.theta, head_dim);
  for (double& frequency : result) {
    const double wavelength = 2.0 * std::numbers::pi / frequency;
    if (wavelength < length / rope.high_freq_factor) continue;
    if (wavelength > length / rope.low_freq_factor) {
      frequency /= rope.factor;
      continue;
    }
    const double smooth = (length / wavelength - rope.low_freq_factor) /
                          (rope.high_freq_factor - rope.low_freq_factor);
    frequency = (1.0 - smooth) * frequency / rope.factor + smooth * frequency;
  }
  return result;
}

}  // namespace

RopeFrequencies rope_inverse_frequencies(const RopeConfig& rope, std::int64_t head_dim,
                                         std::int64_t seq_len) {
  const std::int64_t dim =
      rope.rotary_dim > 0 && rope.type != RopeType::kProportional ? rope.rotary_dim : head_dim;
  switch (rope.type) {
    case RopeType::kProportional: {
      RopeFrequencies result{plain_frequencies(rope.theta, head_dim), 1.0};
      const auto turning = static_cast<std::size_t>(rope.rotary_dim / 2);
      for (std::size_t i = 0; i < result.inv_freq.size(); ++i) {
        result.inv_freq[i] = i < turning ? result.inv_freq[i] / rope.factor : 0.0;
      }
      return result;
    }
    case RopeType::kLinear: {
      RopeFrequencies result{plain_frequencies(rope.theta, dim), 1.0};
      for (double& frequency : result.inv_freq) frequency /= rope.factor;
      return result;
    }
    case RopeType::kDynamic:
      return {dynamic_frequencies(rope, dim, seq_len), 1.0};
    case RopeType::kYarn:
      return {yarn_frequencies(rope, dim), yarn_attention_factor(rope)};
    case RopeType::kLlama3:
      return {llama3_frequencies(rope, dim), 1.0};
    case RopeType::kDefault:
      break;
  }
  return {plain_frequencies(rope.theta, dim), 1.0};
}

std::int64_t largest_position_count(const ModelConfig& config) {
  if (config.rope.type != RopeType::kDynamic) return config.max_position_embeddings;
  const double stretched =
      static_cast<double>(config.max_position_embeddings) * std::max(config.rope.factor, 1.0);
  return static_cast<std::int64_t>(std::min(stretched, kMaxStretchedPositions));
}

}  // namespace blockscope
