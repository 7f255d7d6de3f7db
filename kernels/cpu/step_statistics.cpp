#include "kernels/step_statistics.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "kernels/cpu/cpu_support.h"
#include "kernels/cpu/head_tasks.h"
#include "kernels/cuda/device_operators.h"
#include "kernels/step_operators.h"
#include "kernels/torch/fallback_steps.h"

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

/// Values of a tensor of head h, [source, H, ...].
float* of_head(const at::Tensor& x, size_t source, int64_t head) {
  return x.mutable_data_ptr<float>() + static_cast<int64_t>(source) * x.stride(0) +
         head * x.stride(1);
}

const uint8_t* kinds_of(const LayerStep& step, size_t source) {
  return source < step.source_kinds.size() ? step.source_kinds[source] : nullptr;
}

/// Compares one source with this step.
void compare_source(const LayerStep& step, size_t t, const std::vector<float>& weight,
                    const HeadShape& shape, int64_t head, const LayerStatistics& result) {
  const HeadAttention& source = step.source[t];
  const uint8_t* kinds = kinds_of(step, t);
  float* const errors = of_head(result.reuse_error, t, head);
  float* const kept = kinds == nullptr ? nullptr : of_head(result.kept, t, head);
  // Most rules usually have the same pair.
  const bool alike = t > 0 && (kinds == nullptr) == (kinds_of(step, t - 1) == nullptr);
  if (alike && step.source[t].output == step.source[t - 1].output) {
    std::copy_n(of_head(result.reuse_error, t - 1, head), result.reuse_error.stride(1), errors);
    if (kinds == nullptr) return;
    std::copy_n(of_head(result.kept, t - 1, head), result.kept.stride(1), kept);
    return;
  }
  const int64_t row = head * shape.block;
  const int64_t at = row * shape.dim;
  const std::vector<float> source_weight = external_weights(source, step, shape, head);
  const MergeRows merge{source.output + at, step.external.output + at, step.internal.output + at,
                        source_weight.data(), weight.data()};
  const StatisticsKernels& kernels = statistics_kernels();
  std::array<KeptSums, kKindsOfRows> by_kind;
  const ErrorSums sums =
      kinds == nullptr
          ? kernels.merge_errors(merge, shape.block, shape.dim)
          : kernels.kept_errors(merge, {source.lse + row, step.external.lse + row, kinds},
                                shape.block, shape.dim, by_kind.data());
  float* next = errors;
  for (const double sum : {sums.squared, sums.absolute, sums.reference, sums.dot}) {
    *next++ = static_cast<float>(sum);
  }
  if (kinds == nullptr) return;
  next = kept;
  for (const KeptSums& of_kind : by_kind) {
    for (const double sum :
         {of_kind.rows, of_kind.cosine, of_kind.lse, of_kind.squared, of_kind.reference}) {
      *next++ = static_cast<float>(sum);
    }
  }
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

void put_gaps(const GapSums& sums, int64_t head, const RowGaps& gaps) {
  double squares = 0.0;
  for (const float d : sums.difference) squares += static_cast<double>(d) * static_cast<double>(d);
  const auto rows = static_cast<double>(sums.rows);  // no rows: 0 / 0 is NaN
  gaps.gap.mutable_data_ptr<float>()[head] = static_cast<float>(sums.gap / rows);
  gaps.block_gap.mutable_data_ptr<float>()[head] = static_cast<float>(std::sqrt(squares) / rows);
}

}  // namespace

RowGaps empty_gaps(const at::Tensor& like, int64_t heads) {
  const auto options = like.options().dtype(at::kFloat);
  return {at::empty({heads}, options), at::empty({heads}, options)};
}

LayerStatistics empty_statistics(const LayerStep& step, const HeadShape& shape) {
  const bool prefix = step.external.defined();
  const bool last = step.last_internal.defined();
  const int64_t sources = prefix ? std::ssize(step.source) : 0;
  const int64_t kinds = prefix ? std::ssize(step.source_kinds) : 0;
  const int64_t of_kinds = kKindsOfRows * 5;
  const at::Tensor all = at::empty({shape.heads * (3 + 4 * sources + of_kinds * kinds)},
                                   step.internal.outputs.options());
  int64_t begin = 0;
  const auto part = [&](at::IntArrayRef sizes) {
    const int64_t length = c10::multiply_integers(sizes);
    return all.narrow(0, std::exchange(begin, begin + length), length).view(sizes);
  };
  LayerStatistics result;
  if (prefix) result.external_mass = part({shape.heads});
  if (prefix && last) result.similarity_external = part({shape.heads});
  if (last) result.similarity_internal = part({shape.heads});
  if (prefix) result.reuse_error = part({sources, shape.heads, 4});
  if (prefix) result.kept = part({kinds, shape.heads, kKindsOfRows, 5});
  if (step.first_query != nullptr) result.query = empty_gaps(step.query, shape.heads);
  return result;
}

HeadAttention::HeadAttention(const at::Tensor& all_outputs, const at::Tensor& all_lses, int64_t row)
    : outputs(all_outputs.select(0, row).contiguous()),
      lses(all_lses.select(0, row).contiguous()),
      output(outputs.const_data_ptr<float>()),
      lse(lses.const_data_ptr<float>()) {}

LayerStatistics layer_statistics(const LayerStep& step, const HeadShape& shape) {
  if (!step.internal.defined()) {
    LayerStatistics result;
    if (step.first_query != nullptr) {
      result.query = row_gaps(step.query, step.row, *step.first_query);
    }
    return result;
  }
  if (const DeviceScope device{step.internal.outputs}) {
    return device.run(layer_statistics_on, fallback::layer_statistics, step, shape);
  }
  const bool prefix = step.external.defined();
  const bool last = step.last_internal.defined();
  LayerStatistics result = empty_statistics(step, shape);
  if (prefix) result.kept.fill_(std::numeric_limits<float>::quiet_NaN());
  std::optional<GapRows> query;
  if (step.first_query != nullptr) query.emplace(step.query, step.row, *step.first_query);
  const auto value = [](const at::Tensor& x, int64_t head) -> float& {
    return x.mutable_data_ptr<float>()[head];
  };
  for_each_head(shape.heads, shape.block * shape.dim, [&](int64_t head) {
    if (query) put_gaps(query->sums(head, 0, shape.block), head, result.query);
    if (last) {
      value(result.similarity_internal, head) =
          mean_similarity(step.internal, step.last_internal, shape, head);
    }
    if (!prefix) return;
    const std::vector<float> weight = external_weights(step.external, step, shape, head);
    value(result.external_mass, head) = mean_over_block(shape, head, [&](int64_t row) {
      return static_cast<double>(weight[static_cast<size_t>(row - head * shape.block)]);
    });
    if (last) {
      value(result.similarity_external, head) =
          mean_similarity(step.external, step.last_external, shape, head);
    }
    for (size_t t = 0; t < step.source.size(); ++t) {
      compare_source(step, t, weight, shape, head, result);
    }
  });
  return result;
}

FirstRows::FirstRows(const at::Tensor& x, int64_t row)
    : rows(x.select(0, row).clone(at::MemoryFormat::Contiguous)) {
  if (!rows.is_cpu()) return;
  scale.resize(static_cast<size_t>(rows.size(0) * rows.size(1)));
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
  if (const DeviceScope device{x}) {
    return device.run(row_gaps_on, fallback::row_gaps, x, row, first.rows);
  }
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
  const RowGaps gaps = empty_gaps(x, x.size(1));
  for (int64_t head = 0; head < x.size(1); ++head) {
    const auto of_head = sums.begin() + head * pieces;
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
  lse = row_log_sum_exp(rows.logits);
}

at::Tensor masked_kl(const FirstPrediction& first, const PredictionRows& predicted,
                     const std::vector<bool>& masked) {
  // Only the requested rows, because the softmax over a large vocabulary is expensive.
  std::vector<int64_t> positions, before, now;
  for (size_t p = 0; p < masked.size(); ++p) {
    if (!masked[p] || first.rows.row[p] < 0 || predicted.row[p] < 0) continue;
    positions.push_back(static_cast<int64_t>(p));
    before.push_back(first.rows.row[p]);
    now.push_back(predicted.row[p]);
  }
  at::Tensor kl = at::full({std::ssize(masked)}, std::numeric_limits<float>::quiet_NaN(),
                           predicted.logits.options().dtype(at::kFloat));
  if (const DeviceScope device{kl}) {
    const auto index = [&](const std::vector<int64_t>& rows) {
      return copied_to(at::tensor(rows, at::kLong), kl.device());
    };
    const at::Tensor then = index(before);
    return kl.index_copy_(0, index(positions),
                          fallback::row_divergence(first.rows.logits.index_select(0, then),
                                                   first.lse.index_select(0, then),
                                                   predicted.logits.index_select(0, index(now))));
  }
  const at::Tensor logits = predicted.logits.contiguous();
  const int64_t vocab = logits.size(-1);
  const Element element = element_of(logits);
  const int64_t row_bytes = vocab * element_bytes(element);
  const auto* from_first = static_cast<const char*>(first.rows.logits.const_data_ptr());
  const auto* from_now = static_cast<const char*>(logits.const_data_ptr());
  const auto* first_lse = first.lse.const_data_ptr<double>();
  auto* out = kl.mutable_data_ptr<float>();
  for_each_head(std::ssize(positions), vocab, [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    const StatisticsKernels& kernels = statistics_kernels();
    const char* const row = from_now + now[at] * row_bytes;
    const double lse = kernels.log_sum_exp(element, row, vocab);
    out[positions[at]] = static_cast<float>(kernels.divergence(
        element, from_first + before[at] * row_bytes, first_lse[before[at]], row, lse, vocab));
  });
  return kl;
}

}  // namespace blockscope
