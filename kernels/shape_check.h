// Checks of operator arguments. Each throws c10::Error with where, expected, got and what to do.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace blockscope {

// `expected` sizes; -1 accepts any size. `op` and `name` go into the message.
void check_shape(const char* op, const char* name, const at::Tensor& tensor,
                 at::IntArrayRef expected);

// A defined tensor of this dtype on this device.
void check_tensor(const char* op, const char* name, const at::Tensor& tensor, at::ScalarType dtype,
                  at::Device device);
void check_cpu(const char* op, const char* name, const at::Tensor& tensor, at::ScalarType dtype);

// check_tensor, a contiguous last dimension and, for q, one of the three float dtypes.
void check_operand(const char* op, const char* name, const at::Tensor& tensor, at::ScalarType dtype,
                   at::Device device = at::kCPU);
void check_query(const char* op, const at::Tensor& q, at::Device device = at::kCPU);

// The operators of row_ops.h. Rows: up to 4 dimensions, one of the three float dtypes, on the
// device of the operator's first tensor.
void check_rows(const char* op, const char* name, const at::Tensor& x);
// y: rows like x.
void check_rows_like(const char* op, const char* name, const at::Tensor& y, const at::Tensor& x);
// The weight [W] of a norm over the rows of x.
void check_norm_weight(const char* op, const at::Tensor& weight, const at::Tensor& x);
// x [S, H, T, D]; the tables [S or 1, 1, T, R], float32 or of x's dtype, R even and at most D.
void check_rotation(const char* op, const at::Tensor& x, const at::Tensor& cos,
                    const at::Tensor& sin);

// Sizes shared by the arguments of an attention operator.
struct AttentionSizes {
  int64_t sequences = 0;      // S
  int64_t heads = 0;          // H
  int64_t kv_heads = 0;       // K
  int64_t group = 0;          // G = H / K
  int64_t queries = 0;        // T
  int64_t dim = 0;            // D
  int64_t external_keys = 0;  // N
};

// Checks q [S, H, T, D] and keys [S, K, N, D] (and values, if defined, of the same shape).
AttentionSizes check_attention(const char* op, const at::Tensor& q, const char* key_name,
                               const at::Tensor& keys, const char* value_name,
                               const at::Tensor* values, at::Device device = at::kCPU);

// The arguments of split_attention: check_attention, and k_in, v_in [S, K, T_in, D].
AttentionSizes check_split_attention(const char* op, const at::Tensor& q, const at::Tensor& k_ext,
                                     const at::Tensor& v_ext, const at::Tensor& k_in,
                                     const at::Tensor& v_in, at::Device device = at::kCPU);

// reuse_attention's mask, [H] or [S, H] bool on the CPU, as flags [S * H].
std::vector<bool> check_reuse_mask(const char* op, const at::Tensor& mask,
                                   const AttentionSizes& sizes);

// merge_attention's parts, on the device of the first.
void check_merge_parts(const char* op, const std::vector<at::Tensor>& outputs,
                       const std::vector<at::Tensor>& lses);

// The lengths [S] int64, each in [0, capacity].
std::vector<int64_t> check_lengths(const char* op, const char* name, const at::Tensor& lengths,
                                   int64_t sequences, int64_t capacity);

}  // namespace blockscope
