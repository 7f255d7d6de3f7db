// Products of rows with a weight that was laid out for them, compiled once per instruction set from
// linear_kernels_impl.h and chosen at run time. No torch header, for the reason in tile_kernels.h.
//
// A weight is laid out in panels of kPanelColumns outputs. A panel holds, for each step of 4 bytes
// along the depth (one float32 or two bfloat16), the elements of every output: kPanelStepBytes. A
// pass reads it from one end to the other, once. Sums are float32, in the order of the depth; those
// of a row never depend on the other rows.
#pragma once

#include <cstdint>

#include "kernels/simd/element.h"

namespace blockscope {

constexpr int64_t kPanelColumns = 32;
constexpr int64_t kPanelStepBytes = kPanelColumns * 4;

// One panel times `rows` rows.
struct PanelProduct {
  const char* x = nullptr;  // rows of 4 * steps bytes, x_stride bytes apart
  int64_t x_stride = 0;
  int64_t rows = 0;
  const char* panel = nullptr;
  int64_t steps = 0;
  const char* bias = nullptr;  // of the panel's columns, or nullptr
  char* out = nullptr;         // rows of `columns` elements, out_stride bytes apart
  int64_t out_stride = 0;
  int64_t columns = 0;
};

struct LinearKernels {
  const char* name;
  // out = x w^T + bias, rounded once; up to kPanelColumns columns.
  void (*product)(const PanelProduct& product);
  // The first half of the panel are columns of the gate, the second half of up: out = silu(gate) *
  // up, up to kPanelColumns / 2 columns, rounded like the single operators.
  void (*swiglu)(const PanelProduct& product);
};

// The variants for rows of this type that this machine can run, best first; there may be none.
const LinearKernels* const* available_linear_kernels(Element element, int64_t* count);

// One per instruction set; only linear_kernels.cpp names them.
extern const LinearKernels kLinearKernelsAvx512;      // of float32
extern const LinearKernels kLinearKernelsAvx512Bf16;  // of bfloat16
extern const LinearKernels kLinearKernelsAmx;         // of bfloat16, where may_use_amx() alone

}  // namespace blockscope
