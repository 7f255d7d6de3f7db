// Products of rows with a weight in a special layout, compiled once per instruction set from
// linear_kernels_impl.h and chosen at run time. No torch header, for the reason in tile_kernels.h.
//
// A weight is stored in panels of kPanelColumns outputs. For each step of 4 bytes along the depth
// (one float32 or two bfloat16), a panel holds the elements of all its outputs: kPanelStepBytes. A
// pass reads it once, from start to end. Sums are float32, in the order of the depth. The sums of a
// row never depend on other rows.
#pragma once

#include <cstdint>

#include "kernels/simd/element.h"

namespace blockscope {

constexpr int64_t kPanelColumns = 32;
constexpr int64_t kPanelStepBytes = kPanelColumns * 4;

// The product of one panel and `rows` rows.
struct PanelProduct {
  const char* x = nullptr;  // rows of 4 * steps bytes, x_stride bytes apart
  int64_t x_stride = 0;
  int64_t rows = 0;
  const char* panel = nullptr;
  int64_t steps = 0;
  const char* bias = nullptr;  // bias of the panel's columns, or nullptr
  char* out = nullptr;         // rows of `columns` elements, out_stride bytes apart
  int64_t out_stride = 0;
  int64_t columns = 0;
};

struct LinearKernels {
  const char* name;
  // out = x w^T + bias, rounded once, for up to kPanelColumns columns.
  void (*product)(const PanelProduct& product);
  // The first half of the panel has columns of gate, the second half columns of up. out =
  // silu(gate) * up, for up to kPanelColumns / 2 columns, rounded like the single operators.
  void (*swiglu)(const PanelProduct& product);
  // The same with gelu(gate), in its tanh approximation.
  void (*geglu)(const PanelProduct& product);
};

// The variants for this type that this machine can run, best first. There may be none.
const LinearKernels* const* available_linear_kernels(Element element, int64_t* count);

// One per instruction set. Only linear_kernels.cpp uses them.
extern const LinearKernels kLinearKernelsAvx512;      // for float32
extern const LinearKernels kLinearKernelsAvx512Bf16;  // for bfloat16
extern const LinearKernels kLinearKernelsAmx;         // for bfloat16, only if may_use_amx()

}  // namespace blockscope
