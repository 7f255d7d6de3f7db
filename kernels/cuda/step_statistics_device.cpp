// layer_statistics and row_gaps on a device.
#include <c10/util/Exception.h>

#include "kernels/cuda/device_operators.h"
#include "kernels/cuda/device_support.h"
#include "kernels/step_statistics.h"
#include "kernels/torch/fallback_steps.h"

namespace blockscope {
namespace {

constexpr const char* kStatistics = "layer_statistics";
constexpr const char* kGaps = "row_gaps";
constexpr int64_t kMostGapRows = 4096;  // two factors of each are in shared memory

StatisticsCall::Pair pair_of(const HeadAttention& pair) { return {pair.output, pair.lse}; }

float* data_of(const at::Tensor& x) { return x.defined() ? x.mutable_data_ptr<float>() : nullptr; }

void set_sources(const LayerStep& step, const HeadShape& shape, StatisticsCall& call) {
  call.sources = static_cast<int>(step.source.size());
  for (size_t t = 0; t < step.source.size(); ++t) {
    const uint8_t* kinds = t < step.source_kinds.size() ? step.source_kinds[t] : nullptr;
    call.source[t] = pair_of(step.source[t]);
    call.has_kinds[t] = kinds != nullptr;
    call.first_alike[t] = static_cast<int>(t);
    // Most rules usually have the same pair.
    if (t > 0 && call.has_kinds[t] == call.has_kinds[t - 1] &&
        call.source[t].output == call.source[t - 1].output) {
      call.first_alike[t] = call.first_alike[t - 1];
    }
    for (int64_t row = 0; kinds != nullptr && row < shape.block; ++row) {
      constexpr int64_t kRowsOfWord = 32 / kRowKindBits;
      call.kinds[t][row / kRowsOfWord] |= uint32_t{kinds[row]}
                                          << (row % kRowsOfWord * kRowKindBits);
    }
  }
}

}  // namespace

LayerStatistics layer_statistics_on(const DeviceQueue& queue, const LayerStep& step,
                                    const HeadShape& shape) {
  if (shape.block > kMaxKindRows || std::ssize(step.source) > kMaxSources) {
    return fallback::layer_statistics(step, shape);
  }
  LayerStatistics result = empty_statistics(step, shape);
  if (step.first_query != nullptr) {
    result.query = row_gaps(step.query, step.row, *step.first_query);
  }
  StatisticsCall call;
  call.heads = device_int(kStatistics, "H", shape.heads);
  call.block = device_int(kStatistics, "B", shape.block);
  call.dim = device_int(kStatistics, "D", shape.dim);
  call.internal = pair_of(step.internal);
  call.last_internal = step.last_internal.output;
  if (step.external.defined()) {
    call.external = pair_of(step.external);
    call.last_external = step.last_external.output;
    set_sources(step, shape, call);
  }
  call.external_mass = data_of(result.external_mass);
  call.similarity_external = data_of(result.similarity_external);
  call.similarity_internal = data_of(result.similarity_internal);
  call.reuse_error = data_of(result.reuse_error);
  call.kept = result.kept.defined() && result.kept.numel() > 0 ? data_of(result.kept) : nullptr;
  queue.launch(queue.kernels.statistics, call);
  return result;
}

RowGaps row_gaps_on(const DeviceQueue& queue, const at::Tensor& x, int64_t row,
                    const at::Tensor& first) {
  const at::Tensor rows = x.narrow(0, row, 1);
  if (x.size(2) > kMostGapRows) return fallback::row_gaps(x, row, first);
  const at::Tensor dense = rows.stride(-1) == 1 || rows.size(-1) == 1 ? rows : rows.contiguous();
  const RowGaps gaps = empty_gaps(x, x.size(1));
  GapsCall call;
  call.type = device_float(x);
  call.heads = device_int(kGaps, "H", x.size(1));
  call.block = device_int(kGaps, "B", x.size(2));
  call.dim = device_int(kGaps, "D", x.size(3));
  call.x = device_rows(dense);
  call.first = first.const_data_ptr();
  call.gap = gaps.gap.mutable_data_ptr<float>();
  call.block_gap = gaps.block_gap.mutable_data_ptr<float>();
  queue.launch(queue.kernels.gaps, call);
  return gaps;
}

}  // namespace blockscope
