#include "kernels/attention_device.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/shape_check.h"

namespace blockscope {
namespace {

constexpr const char* kSplit = "split_attention";
constexpr const char* kReuse = "reuse_attention";

// Where the external pairs come from if not from the whole prefix; the members of SplitCall as
// tensors on the device, contiguous, undefined where the call has none.
struct DeviceSource {
  at::Tensor reuse;  // [S, H] bool
  at::Tensor cached_external;
  at::Tensor cached_lse;
};

DeviceRows rows_of(const at::Tensor& tensor) {
  // The stride of a dimension of one is never used, and may be anything.
  const auto stride = [&](int64_t i) { return tensor.size(i) > 1 ? tensor.stride(i) : 0; };
  return {tensor.const_data_ptr(), stride(0), stride(1), stride(2)};
}

DeviceFloat float_of(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat) return DeviceFloat::kFloat32;
  return tensor.scalar_type() == at::kHalf ? DeviceFloat::kFloat16 : DeviceFloat::kBFloat16;
}

// The data of a tensor [S, ...] from one sequence on; null if it is undefined.
template <class Value>
Value* from_sequence(const at::Tensor& tensor, int64_t sequence) {
  if (!tensor.defined()) return nullptr;
  return reinterpret_cast<Value*>(static_cast<char*>(tensor.mutable_data_ptr()) +
                                  sequence * tensor.stride(0) * tensor.element_size());
}

void check_limits(const char* op, const AttentionSizes& sizes, int64_t internal_keys) {
  TORCH_CHECK(sizes.dim <= kMaxDeviceDim, op, ": q: expected head_dim up to ", kMaxDeviceDim,
              " on a GPU, got ", sizes.dim, ". HINT: run this model on the CPU");
  for (const int64_t size : {sizes.external_keys, internal_keys, sizes.group * sizes.queries}) {
    TORCH_CHECK(size <= std::numeric_limits<int32_t>::max() / 2, op,
                ": expected at most 2^30 - 1 keys or rows on a GPU, got ", size);
  }
}

// Checked arguments of one operator.
struct Arguments {
  AttentionSizes sizes;
  std::vector<int64_t> lengths;
  at::Tensor q, k_ext, v_ext, k_in, v_in;
  double scale = 1.0;
};

Arguments check_arguments(const char* op, const at::Tensor& q, const at::Tensor& k_ext,
                          const at::Tensor& v_ext, const at::Tensor& ext_len,
                          const at::Tensor& k_in, const at::Tensor& v_in, double scale) {
  TORCH_CHECK(q.defined(), op, ": q: expected a tensor, got none");
  const AttentionSizes sizes = check_split_attention(op, q, k_ext, v_ext, k_in, v_in, q.device());
  check_limits(op, sizes, k_in.size(2));
  return {sizes, check_lengths(op, "ext_len", ext_len, sizes.sequences, sizes.external_keys),
          q,     k_ext,
          v_ext, k_in,
          v_in,  scale};
}

// The call for sequences [first, first + count), without workspace.
SplitCall make_call(const Arguments& arguments, const DeviceSource& source,
                    const ReuseAttention& result, int64_t first, int64_t count) {
  const AttentionSizes& sizes = arguments.sizes;
  const auto part = [&](const at::Tensor& tensor) {
    return rows_of(tensor.narrow(0, first, count));
  };
  SplitCall call;
  call.type = float_of(arguments.q);
  call.sequences = static_cast<int>(count);
  call.heads = static_cast<int>(sizes.heads);
  call.kv_heads = static_cast<int>(sizes.kv_heads);
  call.group = static_cast<int>(sizes.group);
  call.queries = static_cast<int>(sizes.queries);
  call.dim = static_cast<int>(sizes.dim);
  call.internal_keys = static_cast<int>(arguments.k_in.size(2));
  call.scale_log2 = static_cast<float>(arguments.scale * 1.4426950408889634);
  call.q = part(arguments.q);
  call.k_ext = part(arguments.k_ext);
  call.v_ext = part(arguments.v_ext);
  call.k_in = part(arguments.k_in);
  call.v_in = part(arguments.v_in);
  call.out = from_sequence<char>(result.out, first);
  call.external = from_sequence<float>(result.external, first);
  call.lse_external = from_sequence<float>(result.lse_external, first);
  call.internal = from_sequence<float>(result.internal, first);
  call.lse_internal = from_sequence<float>(result.lse_internal, first);
  call.keys_read = from_sequence<int64_t>(result.keys_read, first);
  call.reuse = from_sequence<bool>(source.reuse, first);
  call.cached_external = from_sequence<float>(source.cached_external, first);
  call.cached_lse = from_sequence<float>(source.cached_lse, first);
  for (int64_t s = 0; s < count; ++s) {
    const int length = static_cast<int>(arguments.lengths[static_cast<size_t>(first + s)]);
    call.lengths[s] = length;
    call.max_chunks = std::max(call.max_chunks, num_chunks(length));
  }
  return call;
}

ReuseAttention attend(const DeviceQueue& queue, const Arguments& arguments,
                      const DeviceSource& source, bool count_keys) {
  const AttentionSizes& sizes = arguments.sizes;
  const at::Tensor& q = arguments.q;
  const at::TensorOptions floats = q.options().dtype(at::kFloat);
  ReuseAttention result;
  result.out = at::empty({sizes.sequences, sizes.queries, sizes.heads, sizes.dim}, q.options())
                   .transpose(1, 2);
  result.external = at::empty(q.sizes(), floats);
  result.lse_external = at::empty(q.sizes().slice(0, 3), floats);
  result.internal = at::empty(q.sizes(), floats);
  result.lse_internal = at::empty(q.sizes().slice(0, 3), floats);
  if (count_keys) {
    result.keys_read = at::empty({sizes.sequences, sizes.kv_heads}, floats.dtype(at::kLong));
  }
  const bool any = sizes.heads * sizes.queries > 0;
  for (int64_t first = 0; any && first < sizes.sequences; first += kMaxSequencesPerCall) {
    const int64_t count = std::min<int64_t>(kMaxSequencesPerCall, sizes.sequences - first);
    SplitCall call = make_call(arguments, source, result, first, count);
    // Given back while the kernels wait in the queue: torch gives it out again behind them.
    const at::Tensor states = at::empty({state_floats(call)}, floats);
    call.states = states.mutable_data_ptr<float>();
    queue.launch(queue.kernels.split_attention, call);
  }
  return result;
}

}  // namespace

SplitAttention split_attention_on(const DeviceQueue& queue, const at::Tensor& q,
                                  const at::Tensor& k_ext, const at::Tensor& v_ext,
                                  const at::Tensor& ext_len, const at::Tensor& k_in,
                                  const at::Tensor& v_in, double scale) {
  ReuseAttention result = attend(
      queue, check_arguments(kSplit, q, k_ext, v_ext, ext_len, k_in, v_in, scale), {}, false);
  return {result.out, result.external, result.lse_external, result.internal, result.lse_internal};
}

ReuseAttention reuse_attention_on(const DeviceQueue& queue, const at::Tensor& q,
                                  const at::Tensor& k_ext, const at::Tensor& v_ext,
                                  const at::Tensor& ext_len, const at::Tensor& k_in,
                                  const at::Tensor& v_in, const at::Tensor& cached_external,
                                  const at::Tensor& cached_lse, const at::Tensor& reuse_mask,
                                  double scale) {
  const Arguments arguments = check_arguments(kReuse, q, k_ext, v_ext, ext_len, k_in, v_in, scale);
  const AttentionSizes& sizes = arguments.sizes;
  const std::vector<bool> flags = check_reuse_mask(kReuse, reuse_mask, sizes);
  const bool any = std::find(flags.begin(), flags.end(), true) != flags.end();
  DeviceSource source;
  if (any) {
    source.reuse = reuse_mask.expand({sizes.sequences, sizes.heads}).contiguous().to(q.device());
  }
  if (any || cached_external.defined()) {
    check_tensor(kReuse, "cached_external", cached_external, at::kFloat, q.device());
    check_shape(kReuse, "cached_external", cached_external, q.sizes());
    source.cached_external = cached_external.contiguous();
  }
  if (any || cached_lse.defined()) {
    check_tensor(kReuse, "cached_lse", cached_lse, at::kFloat, q.device());
    check_shape(kReuse, "cached_lse", cached_lse, q.sizes().slice(0, 3));
    source.cached_lse = cached_lse.contiguous();
  }
  return attend(queue, arguments, source, true);
}

}  // namespace blockscope
