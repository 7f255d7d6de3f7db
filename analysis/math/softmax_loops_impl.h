// The loops of softmax_loops.h for the width that the including file is compiled for. Included once
// per instruction set; everything has internal linkage.
#pragma once

#include "analysis/math/softmax_loops.h"
#include "kernels/simd/vectors_impl.h"

namespace blockscope {
namespace {

constexpr size_t kWidth = static_cast<size_t>(kLanes);
constexpr size_t kSummedAtOnce = 64 * kWidth;  // in float32; the sums of these are in double

float largest_score(const float* scores, size_t count, float scale) {
  Vec most = broadcast(-kInfinity);
  Vec sum{};  // NaN if a score is
  size_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    const Vec x = load(scores + i) * scale;
    most = x > most ? x : most;
    sum += x * 0.0f;
  }
  float result = -kInfinity;
  float nan = 0.0f;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (most[lane] > result) result = most[lane];
    if (sum[lane] != sum[lane]) nan = sum[lane];
  }
  for (; i < count; ++i) {
    const float x = scores[i] * scale;
    if (x > result) result = x;
    if (x != x) nan = x;
  }
  if (nan != nan) {  // an infinite score gives NaN above, too
    for (size_t j = 0; j < count; ++j) {
      if (scores[j] != scores[j]) return scores[j];
    }
  }
  return result;
}

double exponentials_of(float* scores, size_t count, float scale, float largest) {
  double sum = 0.0;
  size_t i = 0;
  while (i + kWidth <= count) {
    const size_t end = count - i < kSummedAtOnce ? count : i + kSummedAtOnce;
    Vec part{};
    for (; i + kWidth <= end; i += kWidth) {
      const Vec weight = exp_vec(load(scores + i) * scale - largest);
      store(scores + i, weight);
      part += weight;
    }
    for (int lane = 0; lane < kLanes; ++lane) sum += static_cast<double>(part[lane]);
  }
  for (; i < count; ++i) {
    scores[i] = exp_vec(broadcast(scores[i] * scale - largest))[0];
    sum += static_cast<double>(scores[i]);
  }
  return sum;
}

void multiply_all(float* values, size_t count, float factor) {
  for (size_t i = 0; i < count; ++i) values[i] *= factor;
}

constexpr SoftmaxLoops make_softmax_loops(const char* name) {
  return {name, largest_score, exponentials_of, multiply_all};
}

}  // namespace
}  // namespace blockscope
