// The dialect of device code: CUDA's own names, and a wrapper for each instruction that CUDA C++
// has no name for. A kernel includes only this header and is in the namespace
// blockscope::BLOCKSCOPE_BACKEND. nvcc compiles it for a GPU (`cuda`), and any C++ compiler for the
// emulator (`emulated`). One program can hold both. No torch here.
//
//   dynamic_shared()                   the block's shared memory, of launch()'s shared_bytes
//   launch(kernel, grid, block, shared_bytes, stream, arguments...)
//   shared_limit()                     the most shared_bytes that the current device takes
//   copy_async_16(to, from, bytes)     cp.async of 0..16 bytes; the rest of the 16 is zeroed.
//                                      Both are aligned to 16. With 0 bytes, nothing is read
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

// The bits of 16-bit floats. The types also select overloads of the functions above.
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
