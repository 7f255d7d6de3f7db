#include "kernels/cpu/step_statistics.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>

#include "kernels/cpu/cpu_support.h"
#include "kernels/cpu/head_tasks.h"

namespace blockscope {
namespace {

/// Mean of `value(row)` over the rows of a head, without NaN values.
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
  return static_cast<float>(sum / static_cast<double>(rows));  // no rows: 0 / 0 is NaN
}

/// mean_i cos(a_i, b_i) over the block.
float mean_similarity(const HeadAttention& a, const HeadAttention& b, const HeadShape& shape,
                      int64_t head) {
  const StatisticsKernels& kernels = statistics_kernels();
  return mean_over_block(shape, head, [&](int64_t row) {
    return kernels.cosine(a.output + row * shape.dim, b.output + row * shape.dim, shape.dim);
  });
}

/// The weight of the external side in the merge with the internal side, for each row of a head:
/// [B].
std::vector<float> external_weights(const HeadAttention& external, const LayerStep& step,
                                    const HeadShape& shape, int64_t head) {
  std::vector<float> weight(static_cast<size_t>(shape.block));
  const int64_t first = head * shape.block;
  statistics_kernels().external_weights(external.lse + first, step.internal.lse + first,
                                        shape.block, weight.data());
  return weight;
}

/// Adds the comparison of one source with this step to `result`.
void compare_source(const LayerStep& step, size_t t, const std::vector<float>& weight,
                    const HeadShape& shape, int64_t head, LayerStatistics& result) {
  const HeadAttention& source = step.source[t];
  const auto h = static_cast<size_t>(head);
  const uint8_t* kinds = t < step.source_kinds.size() ? step.source_kinds[t] : nullptr;
  // Most rules usually have the same pair.
  const uint8_t* kinds_before =
      t > 0 && t - 1 < step.source_kinds.size() ? step.source_kinds[t - 1] : nullptr;
  const bool alike = (kinds == nullptr) == (kinds_before == nullptr);
  if (t > 0 && alike && step.source[t].output == step.source[t - 1].output) {
    result.reuse_error[t][h] = result.reuse_error[t - 1][h];
    if (kinds != nullptr) result.kept[t][h] = result.kept[t - 1][h];
    return;
  }
  const int64_t row = head * shape.block;
  const int64_t at = row * shape.dim;
  const std::vector<float> source_weight = external_weights(source, step, shape, head);
  const MergeRows merge{source.output + at, step.external.output + at, step.internal.output + at,
                        source_weight.data(), weight.data()};
  const StatisticsKernels& kernels = statistics_kernels();
  result.reuse_error[t][h] =
      kinds == nullptr
          ? kernels.merge_errors(merge, shape.block, shape.dim)
          : kernels.kept_errors(merge, {source.lse + row, step.external.lse + row, kinds},
                                shape.block, shape.dim, result.kept[t][h].data());
}

/// Sums of the gaps between unit vectors of some rows of a head.
struct GapSums {
  double gap = 0.0;
  int64_t rows = 0;               // rows that both have
  std::vector<float> difference;  // [D]
};

/// x[row], compared with the first step's rows.
class GapRows {
 public:
  GapRows(const at::Tensor& x, int64_t row, const FirstRows& first)
      : dense_(x.stride(-1) == 1 ? x : x.contiguous()), now_(dense_), row_(row), first_(first) {}

  GapSums sums(int64_t head, int64_t begin, int64_t end) const {
    const int64_t block = dense_.size(2);
    const int64_t dim = dense_.size(3);
    const Element element = element_of(dense_);
    const auto* then = static_cast<const char*>(first_.rows.const_data_ptr());
    GapSums sums;
    sums.difference.resize(static_cast<size_t>(dim));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = head * block + i;
      const float scale = first_.scale[static_cast<size_t>(at)];
      if (std::isnan(scale)) continue;
      const double gap = statistics_kernels().unit_gap(element, now_.at(row_, head, i),
                                                       then + at * dim * element_bytes(element),
                                                       scale, dim, sums.difference.data());
      if (std::isnan(gap)) continue;
      sums.gap += gap;
      ++sums.rows;
    }
    return sums;
  }

 private:
  at::Tensor dense_;
  RawView now_;
  int64_t row_;
  const FirstRows& first_;
};

void put_gaps(const GapSums& sums, size_t head, RowGaps& gaps) {
  double squares = 0.0;
  for (const float d : sums.difference) squares += static_cast<double>(d) * static_cast<double>(d);
  const auto rows = static_cast<double>(sums.rows);  // no rows: 0 / 0 is NaN
  gaps.gap[head] = static_cast<float>(sums.gap / rows);
  gaps.block_gap[head] = static_cast<float>(std::sqrt(squares) / rows);
}

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
  if (prefix) result.reuse_error.assign(step.source.size(), std::vector<ErrorSums>(heads));
  if (prefix) result.kept.resize(step.source_kinds.size());
  for (size_t t = 0; t < result.kept.size(); ++t) {
    if (step.source_kinds[t] != nullptr) result.kept[t].resize(heads);
  }
  std::optional<GapRows> query;
  if (step.first_query != nullptr) {
    query.emplace(step.query, step.row, *step.first_query);
    result.query = {std::vector<float>(heads), std::vector<float>(heads)};
  }
  for_each_head(shape.heads, shape.block * shape.dim, [&](int64_t head) {
    const auto h = static_cast<size_t>(head);
    if (query) put_gaps(query->sums(head, 0, shape.block), h, result.query);
    if (last) {
      result.similarity_internal[h] =
          mean_similarity(step.internal, step.last_internal, shape, head);
    }
    if (!prefix) return;
    const std::vector<float> weight = external_weights(step.external, step, shape, head);
    result.external_mass[h] = mean_over_block(shape, head, [&](int64_t row) {
      return static_cast<double>(weight[static_cast<size_t>(row - head * shape.block)]);
    });
    if (last) {
      result.similarity_external[h] =
          mean_similarity(step.external, step.last_external, shape, head);
    }
    for (size_t t = 0; t < step.source.size(); ++t) {
      compare_source(step, t, weight, shape, head, result);
    }
  });
  return result;
}

FirstRows::FirstRows(const at::Tensor& x, int64_t row)
    : rows(x.select(0, row).clone(at::MemoryFormat::Contiguous)),
      scale(static_cast<size_t>(rows.size(0) * rows.size(1))) {
  const HeadShape shape{rows.size(0), rows.size(1), rows.size(2)};
  const Element element = element_of(rows);
  const auto* from = static_cast<const char*>(rows.const_data_ptr());
  for_each_head(shape.heads, shape.block * shape.dim, [&](int64_t head) {
    for (int64_t r = head * shape.block; r < (head + 1) * shape.block; ++r) {
      scale[static_cast<size_t>(r)] = statistics_kernels().unit_scale(
          element, from + r * shape.dim * element_bytes(element), shape.dim);
    }
  });
}

bool FirstRows::like(const at::Tensor& x) const {
  return rows.defined() && rows.scalar_type() == x.scalar_type() &&
         rows.sizes() == x.sizes().slice(1);
}

RowGaps row_gaps(const at::Tensor& x, int64_t row, const FirstRows& first) {
  const GapRows rows(x, row, first);
  const int64_t block = x.size(2);
  const int64_t dim = x.size(3);
  constexpr int64_t kElementsPerPiece = 1 << 13;
  const int64_t rows_of_piece = std::max<int64_t>(kElementsPerPiece / dim, 1);
  const int64_t pieces = (block + rows_of_piece - 1) / rows_of_piece;
  std::vector<GapSums> sums(static_cast<size_t>(x.size(1) * pieces));
  for_each_head(std::ssize(sums), rows_of_piece * dim, [&](int64_t i) {
    const int64_t begin = i % pieces * rows_of_piece;
    sums[static_cast<size_t>(i)] =
        rows.sums(i / pieces, begin, std::min(begin + rows_of_piece, block));
  });
  const auto heads = static_cast<size_t>(x.size(1));
  RowGaps gaps{std::vector<float>(heads), std::vector<float>(heads)};
  for (size_t head = 0; head < heads; ++head) {
    const auto of_head = sums.begin() + static_cast<int64_t>(head) * pieces;
    for (auto piece = of_head + 1; piece != of_head + pieces; ++piece) {
      of_head->gap += piece->gap;
      of_head->rows += piece->rows;
      std::transform(piece->difference.begin(), piece->difference.end(),
                     of_head->difference.begin(), of_head->difference.begin(), std::plus<>());
    }
    put_gaps(*of_head, head, gaps);
  }
  return gaps;
}

PredictionRows::PredictionRows(const at::Tensor& all) : logits(all) {
  row.resize(static_cast<size_t>(all.size(0)));
  std::iota(row.begin(), row.end(), int64_t{0});
}

PredictionRows::PredictionRows(const at::Tensor& rows, const std::vector<bool>& predicted)
    : logits(rows) {
  int64_t next = 0;
  for (const bool there : predicted) row.push_back(there ? next++ : -1);
}

// A copy, because a view would keep the logits of the whole batch alive.
FirstPrediction::FirstPrediction(const PredictionRows& predicted) : rows(predicted) {
  rows.logits = rows.logits.clone(at::MemoryFormat::Contiguous);
  lse.resize(static_cast<size_t>(rows.logits.size(0)));
  const Element element = element_of(rows.logits);
  const int64_t vocab = rows.logits.size(1);
  const auto* data = static_cast<const char*>(rows.logits.const_data_ptr());
  for_each_head(rows.logits.size(0), vocab, [&](int64_t i) {
    lse[static_cast<size_t>(i)] =
        statistics_kernels().log_sum_exp(element, data + i * vocab * element_bytes(element), vocab);
  });
}

std::vector<float> masked_kl(const FirstPrediction& first, const PredictionRows& predicted,
                             const std::vector<bool>& masked) {
  const at::Tensor logits = predicted.logits.contiguous();
  const int64_t vocab = logits.size(-1);
  // Only the requested rows, because the softmax over a large vocabulary is expensive.
  std::vector<size_t> positions;
  for (size_t p = 0; p < masked.size(); ++p) {
    if (masked[p] && first.rows.row[p] >= 0 && predicted.row[p] >= 0) positions.push_back(p);
  }
  std::vector<float> kl(masked.size(), std::numeric_limits<float>::quiet_NaN());
  const Element element = element_of(logits);
  const int64_t row_bytes = vocab * element_bytes(element);
  const auto* then = static_cast<const char*>(first.rows.logits.const_data_ptr());
  const auto* now = static_cast<const char*>(logits.const_data_ptr());
  for_each_head(std::ssize(positions), vocab, [&](int64_t i) {
    const size_t p = positions[static_cast<size_t>(i)];
    const int64_t before = first.rows.row[p];
    const StatisticsKernels& kernels = statistics_kernels();
    const char* const row = now + predicted.row[p] * row_bytes;
    const double lse = kernels.log_sum_exp(element, row, vocab);
    kl[p] = static_cast<float>(kernels.divergence(element, then + before * row_bytes,
                                                  first.lse[static_cast<size_t>(before)], row, lse,
                                                  vocab));
  });
  return kl;
}

}  // namespace blockscope
