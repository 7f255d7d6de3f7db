// The dialect that device code is written in: CUDA's own names, and one wrapper for each
// instruction that CUDA C++ has no name for. A kernel includes only this header and lives in the
// namespace blockscope::BLOCKSCOPE_BACKEND: nvcc compiles it for a GPU (`cuda`), any C++ compiler
// for the emulator (`emulated`), and one program can hold both. No torch here.
//
//   dynamic_shared()                   the block's shared memory, launch()'s last size
//   launch(kernel, grid, block, shared_bytes, stream, arguments...)
//   shared_limit()                     the most shared_bytes that the current device takes
//   copy_async_16(to, from, bytes)     cp.async of 0..16 bytes, the rest of the 16 zeroed; both
//                                      aligned to 16; nothing is read where bytes is 0
//   copy_async_commit(), copy_async_wait<n>()
//   load_matrix_x4[_transposed](r, p)  ldmatrix of four 8x8 matrices of 16 bit; p of lane i is row
//                                      i % 8 of matrix i / 8
//   multiply_add(c, a, b0, b1, type)   mma m16n8k16: c += a b, accumulated in float32
//   pack_pair(low, high, type)         two floats rounded to nearest even, `low` in the low half
//   unpack_low(p, type), unpack_high(p, type), to_float(x), round_to<T>(x)
//   exp2_flushed(x)                    2^x without subnormals: 1 at 0, 0 at -inf, relative error
//                                      2^-22
#pragma once

#include <cstdint>

namespace blockscope {

// 16-bit floats as they lie in memory; operands of the overloads above also name them as types.
struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

}  // namespace blockscope

#if defined(__CUDACC__)
#define BLOCKSCOPE_BACKEND cuda
#include "kernels/device/cuda_device.h"
#else
#define BLOCKSCOPE_BACKEND emulated
#include "kernels/device/emulated_device.h"
#endif
