// Checks of operator arguments. Each throws c10::Error with the place, the expected and the found
// value, and what to do.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kernels/ops.h"

namespace blockscope {

// Checks for the `expected` sizes; -1 accepts any size. `op` and `name` are for the message.
void check_shape(const char* op, const char* name, const at::Tensor& tensor,
                 at::IntArrayRef expected);

// Checks for a defined tensor of this dtype on this device.
void check_tensor(const char* op, const char* name, const at::Tensor& tensor, at::ScalarType dtype,
                  at::Device device);
void check_cpu(const char* op, const char* name, const at::Tensor& tensor, at::ScalarType dtype);

// Like check_tensor, and the last dimension must be contiguous. q must have one of the three float
// dtypes.
void check_operand(const char* op, const char* name, const at::Tensor& tensor, at::ScalarType dtype,
                   at::Device device = at::kCPU);
void check_query(const char* op, const at::Tensor& q, at::Device device = at::kCPU);

// For the operators of row_ops.h. Rows have up to 4 dimensions and one of the three float dtypes,
// and are on the device of the operator's first tensor.
void check_rows(const char* op, const char* name, const at::Tensor& x);
// y must be rows like x.
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

// Checks the arguments of split_attention: like check_attention, and k_in, v_in [S, K, T_in, D].
AttentionSizes check_split_attention(const char* op, const at::Tensor& q, const at::Tensor& k_ext,
                                     const at::Tensor& v_ext, const at::Tensor& k_in,
                                     const at::Tensor& v_in, at::Device device = at::kCPU);

// Checks reuse_attention's mask, [H] or [S, H] bool on the CPU, and returns flags [S * H].
std::vector<bool> check_reuse_mask(const char* op, const at::Tensor& mask,
                                   const AttentionSizes& sizes);

// Checks reuse_attention's refresh_rows, [S, T] bool on the CPU, and returns flags [S * T]; empty
// if it is undefined or has no row.
std::vector<bool> check_refresh_rows(const char* op, const at::Tensor& rows,
                                     const AttentionSizes& sizes);

// Whether a row of a head that reuses takes the cached pair, from the flags of the two functions.
bool takes_cached(const std::vector<bool>& reuse, const std::vector<bool>& refresh,
                  const AttentionSizes& sizes);

// Checks merge_attention's parts, which must be on the device of the first.
void check_merge_parts(const char* op, const std::vector<at::Tensor>& outputs,
                       const std::vector<at::Tensor>& lses);

// Checks lengths [S] int64, each in [0, capacity], and returns them.
std::vector<int64_t> check_lengths(const char* op, const char* name, const at::Tensor& lengths,
                                   int64_t sequences, int64_t capacity);

// Checks the question of `spread`: its ends and places.
void check_spread(const char* op, const WeightSpread& spread, const AttentionSizes& sizes,
                  const std::vector<int64_t>& lengths, int64_t internal_keys);

}  // namespace blockscope
