// merge_attention: rows are merged one by one with merge_parts, in float32.
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <string>
#include <vector>

#include "kernels/attention_state.h"
#include "kernels/cpu_support.h"
#include "kernels/device_operators.h"
#include "kernels/ops.h"
#include "kernels/shape_check.h"

namespace blockscope {
namespace {

constexpr const char* kOp = "merge_attention";

void check_parts(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& lses) {
  TORCH_CHECK(!outputs.empty() && outputs.size() == lses.size(), kOp,
              ": outputs: expected one lse per output and at least one, got ", outputs.size(),
              " outputs and ", lses.size(), " lses");
  TORCH_CHECK(outputs[0].defined() && outputs[0].dim() > 0, kOp,
              ": outputs[0]: expected a tensor [..., D]");
  const at::ScalarType dtype = outputs[0].scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16, kOp,
              ": outputs[0]: expected dtype Float, Half or BFloat16, got ", dtype);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::string output = "outputs[" + std::to_string(i) + "]";
    const std::string lse = "lses[" + std::to_string(i) + "]";
    check_cpu(kOp, output.c_str(), outputs[i], dtype);
    check_shape(kOp, output.c_str(), outputs[i], outputs[0].sizes());
    check_cpu(kOp, lse.c_str(), lses[i], at::kFloat);
    check_shape(kOp, lse.c_str(), lses[i],
                outputs[0].sizes().slice(0, outputs[0].sizes().size() - 1));
  }
}

}  // namespace

MergedAttention merge_attention(const std::vector<at::Tensor>& outputs,
                                const std::vector<at::Tensor>& lses) {
  if (const DeviceOperators* device =
          operators_of(outputs.empty() ? at::Tensor() : outputs.front())) {
    return device->merge_attention(outputs, lses);
  }
  check_parts(outputs, lses);
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

}  // namespace blockscope
