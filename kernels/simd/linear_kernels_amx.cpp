// Linear kernels for bfloat16 on AMX. On a CPU without AMX, tests run them in an emulation
// (tests/kernels/amx_emulation.h).
#include "kernels/simd/amx_tiles_impl.h"
#include "kernels/simd/linear_kernels_impl.h"

namespace blockscope {
namespace {

static_assert(kPanelStepBytes == kStepBytes && kPanelColumns == 2 * kTileColumns);

// Distance of the prefetch of weights from the current tiles. Prefetches are spread between the
// products, because a core has few lines in flight: all at once took 1.2 times as long (Xeon, 32
// rows).
constexpr int64_t kAheadBytes = 2 * kBlockBytes;

struct AmxSums {
  template <class Finish>
  static void for_rows(const PanelProduct& p, const Finish& finish) {
    alignas(64) float sums[kMostRows * kPanelColumns];
    for_blocks_of_rows(p.rows, [&]<bool kSecond>(int64_t begin, int64_t rows) {
      sum<kSecond>(p, begin, rows, sums);
      for (int64_t r = 0; r < rows; ++r) {
        finish(sums + r * kPanelColumns, p.out + (begin + r) * p.out_stride);
      }
    });
  }

 private:
  template <bool kSecond>
  static void sum(const PanelProduct& p, int64_t begin, int64_t rows, float* sums) {
    const char* x = p.x + begin * p.x_stride;
    clear_sums<kSecond, true>();
    const int64_t full = p.steps / kBlockSteps;
    for (int64_t b = 0; b < full; ++b) {
      const char* weights = p.panel + b * kBlockBytes;
      const char* ahead = weights + kAheadBytes;
      load_panel<true>(weights);
      add_rows<kSecond, true>(x + b * kRowBytes, p.x_stride, [&] {
        constexpr int64_t kBytes = kBlockBytes / (kSecond ? 4 : 2);
#pragma GCC unroll 16
        for (int64_t i = 0; i < kBytes; i += 64) _mm_prefetch(ahead + i, _MM_HINT_T0);
        ahead += kBytes;
      });
    }
    if (p.steps > full * kBlockSteps) {
      // Zeros after the last step on both sides, because neither may be NaN.
      alignas(64) char last_x[kMostRows * kRowBytes] = {};
      alignas(64) char last_weights[kBlockBytes] = {};
      const auto steps = static_cast<size_t>(p.steps - full * kBlockSteps);
      for (int64_t r = 0; r < rows; ++r) {
        std::memcpy(last_x + r * kRowBytes, x + r * p.x_stride + full * kRowBytes, steps * 4);
      }
      std::memcpy(last_weights, p.panel + full * kBlockBytes, steps * kPanelStepBytes);
      finish_writes();
      load_panel<true>(last_weights);
      add_rows<kSecond, true>(last_x, kRowBytes);
    }
    store_sums<kSecond, true>(sums, kPanelColumns);
  }
};

}  // namespace

const LinearKernels kLinearKernelsAmx = make_linear_kernels<BFloat16, AmxSums>("amx_bf16");

}  // namespace blockscope
