#include "kernels/split_attention_device.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/shape_check.h"

namespace blockscope {
namespace {

constexpr const char* kSplit = "split_attention";

DeviceRows rows_of(const at::Tensor& tensor) {
  // The stride of a dimension of one is never used, and may be anything.
  const auto stride = [&](int64_t i) { return tensor.size(i) > 1 ? tensor.stride(i) : 0; };
  return {tensor.const_data_ptr(), stride(0), stride(1), stride(2)};
}

DeviceFloat float_of(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat) return DeviceFloat::kFloat32;
  return tensor.scalar_type() == at::kHalf ? DeviceFloat::kFloat16 : DeviceFloat::kBFloat16;
}

void check_limits(const char* op, const AttentionSizes& sizes, int64_t internal_keys) {
  TORCH_CHECK(sizes.dim <= kMaxDeviceDim, op, ": q: expected head_dim up to ", kMaxDeviceDim,
              " on a GPU, got ", sizes.dim, ". HINT: run this model on the CPU");
  for (const int64_t size : {sizes.external_keys, internal_keys, sizes.group * sizes.queries}) {
    TORCH_CHECK(size <= std::numeric_limits<int32_t>::max() / 2, op,
                ": expected at most 2^30 - 1 keys or rows on a GPU, got ", size);
  }
}

}  // namespace

SplitAttention split_attention_on(const LaunchSplit& launch, const at::Tensor& q,
                                  const at::Tensor& k_ext, const at::Tensor& v_ext,
                                  const at::Tensor& ext_len, const at::Tensor& k_in,
                                  const at::Tensor& v_in, double scale) {
  TORCH_CHECK(q.defined(), kSplit, ": q: expected a tensor, got none");
  const AttentionSizes sizes =
      check_split_attention(kSplit, q, k_ext, v_ext, k_in, v_in, q.device());
  const std::vector<int64_t> lengths =
      check_lengths(kSplit, "ext_len", ext_len, sizes.sequences, sizes.external_keys);
  check_limits(kSplit, sizes, k_in.size(2));

  const at::TensorOptions floats = q.options().dtype(at::kFloat);
  SplitAttention result;
  result.out = at::empty({sizes.sequences, sizes.queries, sizes.heads, sizes.dim}, q.options())
                   .transpose(1, 2);
  result.external = at::empty(q.sizes(), floats);
  result.lse_external = at::empty(q.sizes().slice(0, 3), floats);
  result.internal = at::empty(q.sizes(), floats);
  result.lse_internal = at::empty(q.sizes().slice(0, 3), floats);

  const auto at = [](const at::Tensor& tensor, int64_t sequence) {
    return static_cast<char*>(tensor.mutable_data_ptr()) +
           sequence * tensor.stride(0) * tensor.element_size();
  };
  const int64_t rows = sizes.heads * sizes.queries;
  for (int64_t first = 0; first < sizes.sequences && rows > 0; first += kMaxSequencesPerCall) {
    const int64_t count = std::min<int64_t>(kMaxSequencesPerCall, sizes.sequences - first);
    const auto part = [&](const at::Tensor& tensor) {
      return rows_of(tensor.narrow(0, first, count));
    };
    SplitCall call;
    call.type = float_of(q);
    call.sequences = static_cast<int>(count);
    call.heads = static_cast<int>(sizes.heads);
    call.kv_heads = static_cast<int>(sizes.kv_heads);
    call.group = static_cast<int>(sizes.group);
    call.queries = static_cast<int>(sizes.queries);
    call.dim = static_cast<int>(sizes.dim);
    call.internal_keys = static_cast<int>(k_in.size(2));
    call.scale_log2 = static_cast<float>(scale * 1.4426950408889634);
    call.q = part(q);
    call.k_ext = part(k_ext);
    call.v_ext = part(v_ext);
    call.k_in = part(k_in);
    call.v_in = part(v_in);
    call.out = at(result.out, first);
    call.external = reinterpret_cast<float*>(at(result.external, first));
    call.lse_external = reinterpret_cast<float*>(at(result.lse_external, first));
    call.internal = reinterpret_cast<float*>(at(result.internal, first));
    call.lse_internal = reinterpret_cast<float*>(at(result.lse_internal, first));
    for (int64_t s = 0; s < count; ++s) {
      const int length = static_cast<int>(lengths[static_cast<size_t>(first + s)]);
      call.lengths[s] = length;
      call.max_chunks = std::max(call.max_chunks, num_chunks(length));
    }
    const at::Tensor states = at::empty({state_floats(call)}, floats);
    call.states = states.mutable_data_ptr<float>();
    launch(call);
  }
  return result;
}

}  // namespace blockscope
