#include "kernels/cuda/row_ops_device.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/device_support.h"
#include "kernels/shape_check.h"

namespace blockscope {
namespace {

/// Size of the dimension that is the n-th from the end, from 1; of one that is missing 1.
int64_t size_at(const at::Tensor& x, int64_t n) { return n <= x.dim() ? x.size(-n) : 1; }

/// A tensor of up to 4 dimensions as [S, heads, tokens, W], without the operators of a view.
DeviceRows as_heads(const at::Tensor& x) {
  const auto stride = [&](int64_t n) { return size_at(x, n) > 1 ? x.stride(-n) : 0; };
  return {x.const_data_ptr(), stride(4), stride(3), stride(2)};
}

/// Whether every row starts at a multiple of 16 bytes.
bool starts_aligned(const at::Tensor& x) {
  const DeviceRows rows = as_heads(x);
  const int64_t chunk = 16 / x.element_size();
  return reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 &&
         (rows.sequence % chunk | rows.head % chunk | rows.row % chunk) == 0;
}

/// Whether the rows of all of them, `widths` long in all their parts, are whole pieces of 16 bytes.
bool are_aligned(std::initializer_list<const at::Tensor*> tensors,
                 std::initializer_list<int64_t> widths) {
  const int64_t chunk = 16 / (*tensors.begin())->element_size();
  return std::all_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor* each) { return starts_aligned(*each); }) &&
         std::all_of(widths.begin(), widths.end(),
                     [&](int64_t width) { return width % chunk == 0; });
}

/// The members of a call that say how many rows there are.
template <class Call>
void set_rows(const char* op, Call& call, const at::Tensor& x) {
  call.type = device_float(x);
  call.dim = device_int(op, "row", x.size(-1));
  call.tokens = device_int(op, "rows", size_at(x, 2));
  call.heads = device_int(op, "rows", size_at(x, 3));
  call.rows = device_int(op, "rows", x.numel() / std::max<int64_t>(1, x.size(-1)));
}

NormCall norm_call(const char* op, const at::Tensor& x, const at::Tensor& weight, double eps,
                   bool weight_first, const at::Tensor& out) {
  NormCall call;
  set_rows(op, call, x);
  call.weight_first = weight_first;
  call.eps = static_cast<float>(eps);
  call.x = as_heads(x);
  call.weight = weight.const_data_ptr();
  call.out = out.mutable_data_ptr();
  return call;
}

at::Tensor empty_rows(const at::Tensor& x) { return at::empty(x.sizes(), x.options()); }

}  // namespace

at::Tensor rms_norm_rows_on(const DeviceQueue& queue, const at::Tensor& x, const at::Tensor& weight,
                            double eps, bool weight_first) {
  constexpr const char* kOp = "rms_norm_rows";
  check_rows(kOp, "x", x);
  check_norm_weight(kOp, weight, x);
  const at::Tensor out = empty_rows(x);
  NormCall call = norm_call(kOp, x, weight, eps, weight_first, out);
  call.aligned = are_aligned({&x, &weight, &out}, {call.dim});
  if (x.numel() > 0) queue.launch(queue.kernels.norm, call);
  return out;
}

SumAndNorm add_rms_norm_rows_on(const DeviceQueue& queue, const at::Tensor& x, const at::Tensor& y,
                                const at::Tensor& weight, double eps, bool weight_first) {
  constexpr const char* kOp = "add_rms_norm_rows";
  check_rows(kOp, "x", x);
  check_rows_like(kOp, "y", y, x);
  check_norm_weight(kOp, weight, x);
  const SumAndNorm result{empty_rows(x), empty_rows(x)};
  NormCall call = norm_call(kOp, x, weight, eps, weight_first, result.norm);
  call.y = as_heads(y);
  call.sum = result.sum.mutable_data_ptr();
  call.aligned = are_aligned({&x, &y, &weight, &result.sum, &result.norm}, {call.dim});
  if (x.numel() > 0) queue.launch(queue.kernels.norm, call);
  return result;
}

std::vector<at::Tensor> norm_rotate_rows_on(const DeviceQueue& queue,
                                            const std::vector<HeadsToRotate>& heads,
                                            const at::Tensor& cos, const at::Tensor& sin) {
  constexpr const char* kOp = "rotate_rows";
  std::vector<at::Tensor> out;
  for (const HeadsToRotate& each : heads) {
    check_rotation(kOp, each.x, cos, sin);
    if (each.weight.defined()) check_norm_weight(kOp, each.weight, each.x);
    TORCH_CHECK(each.x.scalar_type() == heads.front().x.scalar_type(), kOp,
                ": x: expected one dtype, got ", heads.front().x.scalar_type(), " and ",
                each.x.scalar_type());
    out.push_back(empty_rows(each.x));
  }
  for (size_t first = 0; first < heads.size();) {
    const at::Tensor& x = heads[first].x;
    RotateCall call;
    call.type = device_float(x);
    call.float_table = cos.scalar_type() == at::kFloat;
    call.tokens = device_int(kOp, "rows", x.size(2));
    call.dim = device_int(kOp, "head_dim", x.size(3));
    call.turning = static_cast<int>(cos.size(-1));
    call.cos = as_heads(cos);
    call.sin = as_heads(sin);
    call.aligned = are_aligned({&x, &cos, &sin}, {call.turning / 2, call.dim});
    size_t parts = 0;
    for (; parts < kMaxTurnedTensors && first + parts < heads.size(); ++parts) {
      const HeadsToRotate& from = heads[first + parts];
      if (from.x.size(3) != call.dim) break;
      RotateCall::Part& part = call.parts[parts];
      part.heads = device_int(kOp, "heads", from.x.size(1));
      part.rows = device_int(kOp, "rows", from.x.numel() / std::max(1, call.dim));
      part.x = as_heads(from.x);
      part.out = out[first + parts].mutable_data_ptr();
      call.rows += part.rows;
      call.aligned = call.aligned && starts_aligned(from.x) && starts_aligned(out[first + parts]);
      if (!from.weight.defined()) continue;
      part.weight = from.weight.const_data_ptr();
      part.weight_first = from.weight_first;
      part.eps = static_cast<float>(from.eps);
      call.aligned = call.aligned && starts_aligned(from.weight);
    }
    if (call.rows > 0 && call.dim > 0) queue.launch(queue.kernels.rotate, call);
    first += parts;
  }
  return out;
}

at::Tensor silu_multiply_on(const DeviceQueue& queue, const at::Tensor& gate,
                            const at::Tensor& up) {
  constexpr const char* kOp = "silu_multiply";
  check_rows(kOp, "gate", gate);
  check_rows_like(kOp, "up", up, gate);
  const at::Tensor out = empty_rows(gate);
  GateCall call;
  set_rows(kOp, call, gate);
  call.gate = as_heads(gate);
  call.up = as_heads(up);
  call.out = out.mutable_data_ptr();
  call.aligned = are_aligned({&gate, &up, &out}, {call.dim});
  if (gate.numel() > 0) queue.launch(queue.kernels.gate, call);
  return out;
}

}  // namespace blockscope
