#include "kernels/shape_check.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>

namespace blockscope {
namespace {

std::string to_text(at::IntArrayRef sizes) {
  std::ostringstream text;
  text << '[';
  for (size_t i = 0; i < sizes.size(); ++i) {
    text << (i ? ", " : "");
    if (sizes[i] < 0) {
      text << '*';
    } else {
      text << sizes[i];
    }
  }
  text << ']';
  return text.str();
}

}  // namespace

void check_shape(const char* op, const char* name, const at::Tensor& tensor,
                 at::IntArrayRef expected) {
  bool equal = tensor.dim() == static_cast<int64_t>(expected.size());
  for (size_t i = 0; equal && i < expected.size(); ++i) {
    equal = expected[i] < 0 || tensor.size(static_cast<int64_t>(i)) == expected[i];
  }
  TORCH_CHECK(equal, op, ": ", name, ": expected shape ", to_text(expected), ", got ",
              to_text(tensor.sizes()), ". HINT: kernels/ops.h lists the shapes of every argument");
}

void check_tensor(const char* op, const char* name, const at::Tensor& tensor, at::ScalarType dtype,
                  at::Device device) {
  TORCH_CHECK(tensor.defined(), op, ": ", name, ": expected a tensor, got none");
  TORCH_CHECK(tensor.device() == device, op, ": ", name, ": expected a tensor on ", device,
              ", got one on ", tensor.device(), ". HINT: move it with .to()");
  TORCH_CHECK(tensor.scalar_type() == dtype, op, ": ", name, ": expected dtype ", dtype, ", got ",
              tensor.scalar_type(), ". HINT: convert it with .to()");
}

void check_cpu(const char* op, const char* name, const at::Tensor& tensor, at::ScalarType dtype) {
  check_tensor(op, name, tensor, dtype, at::kCPU);
}

void check_operand(const char* op, const char* name, const at::Tensor& tensor, at::ScalarType dtype,
                   at::Device device) {
  check_tensor(op, name, tensor, dtype, device);
  const int64_t last = tensor.dim() - 1;
  TORCH_CHECK(tensor.dim() > 0 && (tensor.size(last) <= 1 || tensor.stride(last) == 1), op, ": ",
              name, ": expected a contiguous last dimension, got strides ",
              to_text(tensor.strides()), ". HINT: call .contiguous() first");
}

void check_query(const char* op, const at::Tensor& q, at::Device device) {
  TORCH_CHECK(q.defined(), op, ": q: expected a tensor, got none");
  const at::ScalarType dtype = q.scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16, op,
              ": q: expected dtype Float, Half or BFloat16, got ", dtype,
              ". HINT: convert it with .to()");
  check_operand(op, "q", q, dtype, device);
  check_shape(op, "q", q, {-1, -1, -1, -1});
  TORCH_CHECK(q.size(3) > 0, op, ": q: expected head_dim > 0, got 0");
}

void check_rows(const char* op, const char* name, const at::Tensor& x) {
  TORCH_CHECK(x.defined(), op, ": ", name, ": expected a tensor, got none");
  const at::ScalarType dtype = x.scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16, op, ": ", name,
              ": expected dtype Float, Half or BFloat16, got ", dtype,
              ". HINT: convert it with .to()");
  check_operand(op, name, x, dtype, x.device());
  TORCH_CHECK(x.dim() <= 4, op, ": ", name, ": expected up to 4 dimensions, got ", x.dim());
}

void check_rows_like(const char* op, const char* name, const at::Tensor& y, const at::Tensor& x) {
  check_operand(op, name, y, x.scalar_type(), x.device());
  check_shape(op, name, y, x.sizes());
}

void check_norm_weight(const char* op, const at::Tensor& weight, const at::Tensor& x) {
  check_operand(op, "weight", weight, x.scalar_type(), x.device());
  check_shape(op, "weight", weight, {x.size(-1)});
}

void check_rotation(const char* op, const at::Tensor& x, const at::Tensor& cos,
                    const at::Tensor& sin) {
  check_rows(op, "x", x);
  check_shape(op, "x", x, {-1, -1, -1, -1});
  const int64_t turning = cos.size(-1);
  TORCH_CHECK(turning % 2 == 0 && turning <= x.size(-1), op,
              ": cos: expected an even number of channels up to ", x.size(-1), ", got ", turning);
  const at::ScalarType type = cos.scalar_type() == at::kFloat ? at::kFloat : x.scalar_type();
  for (const auto& [name, table] : {std::pair{"cos", &cos}, std::pair{"sin", &sin}}) {
    check_operand(op, name, *table, type, x.device());
    const int64_t sequences = table->size(0) == 1 ? 1 : x.size(0);
    check_shape(op, name, *table, {sequences, 1, x.size(2), turning});
  }
  check_shape(op, "sin", sin, cos.sizes());
}

AttentionSizes check_attention(const char* op, const at::Tensor& q, const char* key_name,
                               const at::Tensor& keys, const char* value_name,
                               const at::Tensor* values, at::Device device) {
  check_query(op, q, device);
  check_operand(op, key_name, keys, q.scalar_type(), device);
  check_shape(op, key_name, keys, {q.size(0), -1, -1, q.size(3)});
  AttentionSizes sizes;
  sizes.sequences = q.size(0);
  sizes.heads = q.size(1);
  sizes.kv_heads = keys.size(1);
  sizes.queries = q.size(2);
  sizes.dim = q.size(3);
  sizes.external_keys = keys.size(2);
  TORCH_CHECK(sizes.kv_heads > 0 && sizes.heads % sizes.kv_heads == 0, op, ": ", key_name,
              ": expected a number of KV heads that divides the ", sizes.heads,
              " query heads of q, got ", sizes.kv_heads);
  sizes.group = sizes.heads / sizes.kv_heads;
  if (values) {
    check_operand(op, value_name, *values, q.scalar_type(), device);
    check_shape(op, value_name, *values, keys.sizes());
  }
  return sizes;
}

AttentionSizes check_split_attention(const char* op, const at::Tensor& q, const at::Tensor& k_ext,
                                     const at::Tensor& v_ext, const at::Tensor& k_in,
                                     const at::Tensor& v_in, at::Device device) {
  const AttentionSizes sizes = check_attention(op, q, "k_ext", k_ext, "v_ext", &v_ext, device);
  check_operand(op, "k_in", k_in, q.scalar_type(), device);
  check_shape(op, "k_in", k_in, {sizes.sequences, sizes.kv_heads, -1, sizes.dim});
  check_operand(op, "v_in", v_in, q.scalar_type(), device);
  check_shape(op, "v_in", v_in, k_in.sizes());
  return sizes;
}

std::vector<bool> check_reuse_mask(const char* op, const at::Tensor& mask,
                                   const AttentionSizes& sizes) {
  check_cpu(op, "reuse_mask", mask, at::kBool);
  if (mask.dim() == 1) {
    check_shape(op, "reuse_mask", mask, {sizes.heads});
  } else {
    check_shape(op, "reuse_mask", mask, {sizes.sequences, sizes.heads});
  }
  const at::Tensor flags = mask.expand({sizes.sequences, sizes.heads}).contiguous();
  const bool* data = flags.const_data_ptr<bool>();
  return std::vector<bool>(data, data + flags.numel());
}

std::vector<bool> check_refresh_rows(const char* op, const at::Tensor& rows,
                                     const AttentionSizes& sizes) {
  if (!rows.defined()) return {};
  check_cpu(op, "refresh_rows", rows, at::kBool);
  check_shape(op, "refresh_rows", rows, {sizes.sequences, sizes.queries});
  const at::Tensor flags = rows.contiguous();
  const bool* const data = flags.const_data_ptr<bool>();
  const bool* const end = data + flags.numel();
  if (std::find(data, end, true) == end) return {};
  return std::vector<bool>(data, end);
}

bool takes_cached(const std::vector<bool>& reuse, const std::vector<bool>& refresh,
                  const AttentionSizes& sizes) {
  for (int64_t s = 0; s < sizes.sequences; ++s) {
    const auto heads = reuse.begin() + s * sizes.heads;
    if (std::find(heads, heads + sizes.heads, true) == heads + sizes.heads) continue;
    if (refresh.empty()) return true;
    const auto rows = refresh.begin() + s * sizes.queries;
    if (std::find(rows, rows + sizes.queries, false) != rows + sizes.queries) return true;
  }
  return false;
}

void check_merge_parts(const char* op, const std::vector<at::Tensor>& outputs,
                       const std::vector<at::Tensor>& lses) {
  TORCH_CHECK(!outputs.empty() && outputs.size() == lses.size(), op,
              ": outputs: expected one lse per output and at least one, got ", outputs.size(),
              " outputs and ", lses.size(), " lses");
  TORCH_CHECK(outputs[0].defined() && outputs[0].dim() > 0, op,
              ": outputs[0]: expected a tensor [..., D]");
  const at::ScalarType dtype = outputs[0].scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16, op,
              ": outputs[0]: expected dtype Float, Half or BFloat16, got ", dtype);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::string output = "outputs[" + std::to_string(i) + "]";
    const std::string lse = "lses[" + std::to_string(i) + "]";
    check_tensor(op, output.c_str(), outputs[i], dtype, outputs[0].device());
    check_shape(op, output.c_str(), outputs[i], outputs[0].sizes());
    check_tensor(op, lse.c_str(), lses[i], at::kFloat, outputs[0].device());
    check_shape(op, lse.c_str(), lses[i],
                outputs[0].sizes().slice(0, outputs[0].sizes().size() - 1));
  }
}

std::vector<int64_t> check_lengths(const char* op, const char* name, const at::Tensor& lengths,
                                   int64_t sequences, int64_t capacity) {
  check_cpu(op, name, lengths, at::kLong);
  check_shape(op, name, lengths, {sequences});
  std::vector<int64_t> result(static_cast<size_t>(sequences));
  for (int64_t s = 0; s < sequences; ++s) {
    const int64_t length = lengths.const_data_ptr<int64_t>()[s * lengths.stride(0)];
    TORCH_CHECK(length >= 0 && length <= capacity, op, ": ", name, "[", s,
                "]: expected a length in [0, ", capacity, "], got ", length,
                ". HINT: grow the cache or shorten the sequence");
    result[static_cast<size_t>(s)] = length;
  }
  return result;
}

void check_spread(const char* op, const WeightSpread& spread, const AttentionSizes& sizes,
                  const std::vector<int64_t>& lengths, int64_t internal_keys) {
  TORCH_CHECK(std::ssize(spread.ends) == sizes.sequences, op, ": spread.ends: expected ",
              sizes.sequences, " sequences, got ", spread.ends.size());
  for (size_t s = 0; s < spread.ends.size(); ++s) {
    const std::vector<int64_t>& ends = spread.ends[s];
    TORCH_CHECK(ends.size() == spread.ends.front().size() &&
                    std::is_sorted(ends.begin(), ends.end()) &&
                    (ends.empty() || (ends.front() >= 0 && ends.back() <= lengths[s])),
                op, ": spread.ends[", s, "]: expected ", spread.ends.front().size(),
                " ends that never fall, from 0 to ext_len ", lengths[s]);
  }
  const bool all = spread.places.empty();
  TORCH_CHECK(all ? sizes.queries == internal_keys || internal_keys == 0
                  : std::ssize(spread.places) == sizes.queries,
              op, ": spread.places: expected ", sizes.queries, " places, got ",
              spread.places.size());
  for (const int64_t place : spread.places) {
    TORCH_CHECK(place >= 0 && place < internal_keys, op, ": spread.places: expected places below ",
                internal_keys, ", got ", place);
  }
}

}  // namespace blockscope
