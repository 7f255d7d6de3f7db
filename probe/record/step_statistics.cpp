#include "probe/record/step_statistics.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu_support.h"

namespace blockscope {
namespace {

/// Waking threads costs more than a small model's heads.
template <typename Function>
void for_each_head(const HeadShape& shape, const Function& function) {
  constexpr int64_t kElementsPerTask = 1 << 15;
  const int64_t head = std::max<int64_t>(shape.block * shape.dim, 1);
  at::parallel_for(0, shape.heads, std::max<int64_t>(kElementsPerTask / head, 1),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t h = begin; h < end; ++h) function(h);
                   });
}

/// Weight of the external side in a merge of two log-sum-exps, exact when one side is empty.
float external_weight(float lse_external, float lse_internal) {
  if (lse_external == -std::numeric_limits<float>::infinity()) return 0.0F;
  return 1.0F / (1.0F + std::exp(lse_internal - lse_external));
}

/// Mean of `value(row)` over the rows of a head; those that are NaN left out.
template <typename Value>
float mean_over_block(const HeadShape& shape, int64_t head, Value value) {
  double sum = 0.0;
  int64_t rows = 0;
  for (int64_t row = head * shape.block; row < (head + 1) * shape.block; ++row) {
    const double term = value(row);
    if (std::isnan(term)) continue;
    sum += term;
    ++rows;
  }
  return static_cast<float>(sum / static_cast<double>(rows));  // 0 / 0 of none is NaN
}

/// mean_i cos(a_i, b_i) over the block.
float mean_similarity(const HeadAttention& a, const HeadAttention& b, const HeadShape& shape,
                      int64_t head) {
  const StatisticsKernels& kernels = statistics_kernels();
  return mean_over_block(shape, head, [&](int64_t row) {
    return kernels.cosine(a.output + row * shape.dim, b.output + row * shape.dim, shape.dim);
  });
}

ErrorSums reuse_error(const HeadAttention& source, const LayerStep& step, const HeadShape& shape,
                      int64_t head) {
  const StatisticsKernels& kernels = statistics_kernels();
  ErrorSums sums;
  for (int64_t row = head * shape.block; row < (head + 1) * shape.block; ++row) {
    const int64_t at = row * shape.dim;
    const bool absent = std::isnan(source.lse[row]) || std::isnan(step.external.lse[row]);
    if (absent) continue;
    const MergeRow merge{source.output + at, step.external.output + at, step.internal.output + at,
                         external_weight(source.lse[row], step.internal.lse[row]),
                         external_weight(step.external.lse[row], step.internal.lse[row])};
    kernels.add_merge_error(merge, shape.dim, &sums);
  }
  return sums;
}

/// The rows of x[row], [H, B, D] of any strides but the last.
class HeadRows {
 public:
  HeadRows(const at::Tensor& x, int64_t row)
      : shape_{x.size(1), x.size(2), x.size(3)}, element_(element_of(x)), rows_(x), row_(row) {}
  const HeadShape& shape() const { return shape_; }
  /// Row i of a head at unit length: [D].
  void unit(int64_t head, int64_t i, float* out) const {
    statistics_kernels().normalise(element_, rows_.at(row_, head, i), shape_.dim, out);
  }

 private:
  HeadShape shape_;
  Element element_;
  RawView rows_;
  int64_t row_;
};

at::Tensor with_dense_rows(const at::Tensor& x) { return x.stride(-1) == 1 ? x : x.contiguous(); }

}  // namespace

HeadAttention::HeadAttention(const at::Tensor& all_outputs, const at::Tensor& all_lses, int64_t row)
    : outputs(all_outputs.contiguous()),
      lses(all_lses.contiguous()),
      output(outputs.const_data_ptr<float>() + row * outputs.stride(0)),
      lse(lses.const_data_ptr<float>() + row * lses.stride(0)) {}

LayerStatistics layer_statistics(const LayerStep& step, const HeadShape& shape) {
  const auto heads = static_cast<size_t>(shape.heads);
  const bool prefix = step.external.defined();
  const bool last = step.last_internal.defined();
  LayerStatistics result;
  if (prefix) result.external_mass.resize(heads);
  if (prefix && last) result.similarity_external.resize(heads);
  if (last) result.similarity_internal.resize(heads);
  for (auto& sums : result.reuse_error) {
    if (prefix) sums.resize(heads);
  }
  for_each_head(shape, [&](int64_t head) {
    const auto h = static_cast<size_t>(head);
    if (last) {
      result.similarity_internal[h] =
          mean_similarity(step.internal, step.last_internal, shape, head);
    }
    if (!prefix) return;
    result.external_mass[h] = mean_over_block(shape, head, [&](int64_t row) {
      return static_cast<double>(external_weight(step.external.lse[row], step.internal.lse[row]));
    });
    if (last) {
      result.similarity_external[h] =
          mean_similarity(step.external, step.last_external, shape, head);
    }
    for (size_t t = 0; t < step.source.size(); ++t) {
      // Most rules hold the same pair most of the time.
      const bool as_before = t > 0 && step.source[t].output == step.source[t - 1].output;
      result.reuse_error[t][h] =
          as_before ? result.reuse_error[t - 1][h] : reuse_error(step.source[t], step, shape, head);
    }
  });
  return result;
}

std::vector<float> unit_normalised(const at::Tensor& x, int64_t row) {
  const at::Tensor dense = with_dense_rows(x);
  const HeadRows rows(dense, row);
  const HeadShape shape = rows.shape();
  std::vector<float> unit(static_cast<size_t>(shape.rows() * shape.dim));
  for_each_head(shape, [&](int64_t head) {
    for (int64_t i = 0; i < shape.block; ++i) {
      rows.unit(head, i, unit.data() + (head * shape.block + i) * shape.dim);
    }
  });
  return unit;
}

UnitGaps unit_gaps(const at::Tensor& x, int64_t row, const std::vector<float>& first) {
  const at::Tensor dense = with_dense_rows(x);
  const HeadRows rows(dense, row);
  const HeadShape shape = rows.shape();
  const auto heads = static_cast<size_t>(shape.heads);
  UnitGaps result{std::vector<float>(heads), std::vector<float>(heads)};
  for_each_head(shape, [&](int64_t head) {
    std::vector<float> now(static_cast<size_t>(shape.dim));
    std::vector<float> difference(now.size(), 0.0F);
    double sum = 0.0;
    int64_t count = 0;
    for (int64_t i = 0; i < shape.block; ++i) {
      const float* then = first.data() + (head * shape.block + i) * shape.dim;
      rows.unit(head, i, now.data());
      if (std::isnan(now.front()) || std::isnan(then[0])) continue;
      sum += statistics_kernels().distance(now.data(), then, shape.dim, difference.data());
      ++count;
    }
    double squares = 0.0;
    for (const float d : difference) squares += static_cast<double>(d) * static_cast<double>(d);
    const auto h = static_cast<size_t>(head);
    result.gap[h] = static_cast<float>(sum / static_cast<double>(count));
    result.block_gap[h] = static_cast<float>(std::sqrt(squares) / static_cast<double>(count));
  });
  return result;
}

// A copy: a view would keep the logits of the whole batch.
FirstPrediction::FirstPrediction(const at::Tensor& all)
    : logits(all.clone(at::MemoryFormat::Contiguous)) {
  lse.resize(static_cast<size_t>(logits.size(0)));
  const Element element = element_of(logits);
  const int64_t vocab = logits.size(1);
  const auto* rows = static_cast<const char*>(logits.const_data_ptr());
  for_each_head({logits.size(0), 1, vocab}, [&](int64_t i) {
    lse[static_cast<size_t>(i)] =
        statistics_kernels().log_sum_exp(element, rows + i * vocab * element_bytes(element), vocab);
  });
}

std::vector<float> masked_kl(const FirstPrediction& first, const at::Tensor& all,
                             const std::vector<bool>& masked) {
  const at::Tensor logits = all.contiguous();
  const int64_t vocab = logits.size(-1);
  // Only the rows that are asked for: a large vocabulary's softmax is the cost of this statistic.
  std::vector<int64_t> rows;
  for (size_t i = 0; i < masked.size(); ++i) {
    if (masked[i]) rows.push_back(static_cast<int64_t>(i));
  }
  std::vector<float> kl(masked.size(), std::numeric_limits<float>::quiet_NaN());
  const Element element = element_of(logits);
  const int64_t row_bytes = vocab * element_bytes(element);
  const auto* then = static_cast<const char*>(first.logits.const_data_ptr());
  const auto* now = static_cast<const char*>(logits.const_data_ptr());
  for_each_head({std::ssize(rows), 1, vocab}, [&](int64_t i) {
    const int64_t row = rows[static_cast<size_t>(i)];
    const StatisticsKernels& kernels = statistics_kernels();
    const double lse = kernels.log_sum_exp(element, now + row * row_bytes, vocab);
    kl[static_cast<size_t>(row)] = static_cast<float>(
        kernels.divergence(element, then + row * row_bytes, first.lse[static_cast<size_t>(row)],
                           now + row * row_bytes, lse, vocab));
  });
  return kl;
}

}  // namespace blockscope
