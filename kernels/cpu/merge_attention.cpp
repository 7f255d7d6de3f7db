// merge_attention: rows are merged one by one with merge_parts, in float32.
#include <ATen/ops/empty.h>

#include <vector>

#include "kernels/cpu/attention_state.h"
#include "kernels/cpu/cpu_support.h"
#include "kernels/cuda/device_operators.h"
#include "kernels/cuda/device_support.h"
#include "kernels/operator.h"
#include "kernels/ops.h"
#include "kernels/shape_check.h"

namespace blockscope {
namespace {

constexpr const char* kMerge = "merge_attention";

}  // namespace

MergedAttention merge_attention(const std::vector<at::Tensor>& outputs,
                                const std::vector<at::Tensor>& lses) {
  if (const DeviceScope device{outputs.empty() ? at::Tensor() : outputs[0]}) {
    return device.run(merge_attention_on, fallback::merge_attention, outputs, lses);
  }
  check_merge_parts(kMerge, outputs, lses);
  const at::IntArrayRef sizes = outputs[0].sizes();
  const int64_t dim = sizes.back();
  MergedAttention merged;
  merged.out = at::empty(sizes, outputs[0].options().memory_format(at::MemoryFormat::Contiguous));
  merged.lse = at::empty(sizes.slice(0, sizes.size() - 1), lses[0].options());
  std::vector<at::Tensor> contiguous;  // float32, alive while the rows are read
  std::vector<const float*> output_data;
  std::vector<const float*> lse_data;
  for (size_t i = 0; i < outputs.size(); ++i) {
    contiguous.push_back(outputs[i].to(at::kFloat).contiguous());
    output_data.push_back(contiguous.back().const_data_ptr<float>());
    contiguous.push_back(lses[i].contiguous());
    lse_data.push_back(contiguous.back().const_data_ptr<float>());
  }
  float* lse = merged.lse.mutable_data_ptr<float>();
  void* out = merged.out.mutable_data_ptr();
  const Element element = element_of(merged.out);
  constexpr int64_t kRowsPerTask = 64;
  at::parallel_for(0, merged.lse.numel(), kRowsPerTask, [&](int64_t begin, int64_t end) {
    std::vector<AttentionPart> parts(outputs.size());
    std::vector<float> row_out(static_cast<size_t>(dim));
    for (int64_t row = begin; row < end; ++row) {
      for (size_t i = 0; i < parts.size(); ++i) {
        parts[i] = {output_data[i] + row * dim, lse_data[i][row], 1.0f};
      }
      lse[row] = merge_parts(parts.data(), static_cast<int64_t>(parts.size()), dim, row_out.data());
      store_rounded(row_out.data(), dim, element, out, row * dim);
    }
  });
  return merged;
}

// --- on a device

MergedAttention merge_attention_on(const DeviceQueue& queue, const std::vector<at::Tensor>& outputs,
                                   const std::vector<at::Tensor>& lses) {
  check_merge_parts(kMerge, outputs, lses);
  TORCH_CHECK(outputs.size() <= kMaxMergeParts, kMerge, ": outputs: expected at most ",
              kMaxMergeParts, " parts on a GPU, got ", outputs.size(),
              ". HINT: merge them in groups");
  const at::IntArrayRef sizes = outputs[0].sizes();
  MergedAttention merged;
  merged.out = at::empty(sizes, outputs[0].options());
  merged.lse = at::empty(sizes.slice(0, sizes.size() - 1), lses[0].options());
  MergeCall call;
  call.type = device_float(outputs[0]);
  call.parts = static_cast<int>(outputs.size());
  call.dim = device_int(kMerge, "D", sizes.back());
  call.rows = merged.lse.numel();
  call.out = merged.out.mutable_data_ptr();
  call.lse = merged.lse.mutable_data_ptr<float>();
  std::vector<at::Tensor> contiguous;  // alive until the launch
  for (size_t i = 0; i < outputs.size(); ++i) {
    contiguous.push_back(outputs[i].contiguous());
    call.outputs[i] = contiguous.back().const_data_ptr();
    contiguous.push_back(lses[i].contiguous());
    call.lses[i] = contiguous.back().const_data_ptr<float>();
  }
  if (call.rows > 0) queue.launch(queue.kernels.merge, call);
  return merged;
}

TORCH_LIBRARY_FRAGMENT(blockscope, m) {
  define_operator(
      m, "merge_attention(Tensor[] outputs, Tensor[] lses) -> (Tensor out, Tensor lse)",
      [](at::TensorList outputs, at::TensorList lses) {
        const MergedAttention r = merge_attention(outputs.vec(), lses.vec());
        return std::tuple(r.out, r.lse);
      },
      [](at::TensorList outputs, at::TensorList) {
        TORCH_CHECK(!outputs.empty(), "merge_attention: outputs: expected at least one, got none");
        return std::tuple(meta::same(outputs[0]), meta::float_rows(outputs[0]));
      });
}

}  // namespace blockscope
