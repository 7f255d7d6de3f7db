#include "kernels/simd/amx_support.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <array>
#include <cstring>
#include <vector>

#include "kernels/simd/instruction_set.h"

namespace blockscope {
namespace {

/// The upper half of a float32, which is exact for integers up to 256.
uint16_t bfloat16_of(int64_t integer) {
  const auto number = static_cast<float>(integer);
  uint32_t raw;
  std::memcpy(&raw, &number, 4);
  return static_cast<uint16_t>(raw >> 16);
}

/// Values from -2 to 2, in an order that mixed-up rows or columns would change.
int64_t small(int64_t i) { return (i * i + i / 3) % 5 - 2; }

}  // namespace

bool may_use_amx() {
#if defined(__x86_64__)
  static const bool may = [] {
    if (!has_amx_bf16()) return false;
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    constexpr unsigned kTileBit = 1u << 24;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx & kTileBit) == 0) return false;
    // Palette 1: bytes of a row and number of tiles, rows.
    if (__get_cpuid_count(0x1d, 1, &eax, &ebx, &ecx, &edx) == 0) return false;
    if ((ebx & 0xffffu) != 64 || ebx >> 16 != 8 || (ecx & 0xffffu) != 16) return false;
    // Linux saves the tiles of a process only after a request. Systems without this support refuse.
    constexpr int64_t kRequestPermission = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return may;
#else
  return false;
#endif
}

bool multiplies_exactly(const LinearKernels& kernels) {
  constexpr int64_t kSteps = 19;  // one block of the depth and a part of another
  constexpr int64_t kDepth = 2 * kSteps;
  constexpr int64_t kStride = kDepth + 2;
  std::vector<uint16_t> panel;
  for (int64_t step = 0; step < kSteps; ++step) {
    for (int64_t c = 0; c < kPanelColumns; ++c) {
      for (int64_t d = 2 * step; d < 2 * step + 2; ++d) {
        panel.push_back(bfloat16_of(small(d * 37 + c)));
      }
    }
  }
  for (const int64_t rows : {1, 51}) {  // one row; two full tiles, a full one and a part of one
    std::vector<uint16_t> x;
    for (int64_t i = 0; i < rows * kStride; ++i) x.push_back(bfloat16_of(small(i)));
    std::vector<uint16_t> out(static_cast<size_t>(rows * kPanelColumns));
    PanelProduct p;
    p.x = reinterpret_cast<const char*>(x.data());
    p.x_stride = kStride * 2;
    p.rows = rows;
    p.panel = reinterpret_cast<const char*>(panel.data());
    p.steps = kSteps;
    p.out = reinterpret_cast<char*>(out.data());
    p.out_stride = kPanelColumns * 2;
    p.columns = kPanelColumns;
    kernels.product(p);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < kPanelColumns; ++c) {
        int64_t sum = 0;  // at most 4 * kDepth
        for (int64_t d = 0; d < kDepth; ++d) sum += small(r * kStride + d) * small(d * 37 + c);
        if (out[static_cast<size_t>(r * kPanelColumns + c)] != bfloat16_of(sum)) return false;
      }
    }
  }
  return true;
}

bool multiplies_exactly(const TileKernels& kernels) {
  constexpr Element kElement = Element::kBFloat16;
  constexpr int64_t kDim = 75;   // two blocks of the depth and a part of another; an odd number
  constexpr int64_t kKeys = 51;  // a panel and a part of another
  const auto key_at = [](int64_t j, int64_t d) { return small(j * 41 + d); };
  const auto value_at = [](int64_t j, int64_t d) { return small(j * 29 + d + 3); };
  std::vector<uint16_t> keys, values;
  for (int64_t j = 0; j < kKeys; ++j) {
    for (int64_t d = 0; d < kDim; ++d) {
      keys.push_back(bfloat16_of(key_at(j, d)));
      values.push_back(bfloat16_of(value_at(j, d)));
    }
  }
  std::vector<float> packed(static_cast<size_t>(packed_tile_floats(kDim)));
  for (const int64_t rows : {1, 51}) {  // one row; two full tiles, a full one and a part of one
    std::vector<float> queries(static_cast<size_t>(packed_query_floats(rows, kDim)));
    for (int64_t r = 0; r < rows; ++r) {
      std::vector<uint16_t> query;
      for (int64_t d = 0; d < kDim; ++d) query.push_back(bfloat16_of(small(r * 53 + d)));
      kernels.pack_query(kElement, query.data(), kDim, r, queries.data());
    }
    std::vector<float> scores(static_cast<size_t>(rows * kTileKeys));
    kernels.pack_keys(kElement, keys.data(), kDim * 2, kKeys, kDim, packed.data());
    kernels.scores(kElement, queries.data(), packed.data(), rows, kKeys, kDim, scores.data());
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < kKeys; ++j) {
        int64_t sum = 0;
        for (int64_t d = 0; d < kDim; ++d) sum += small(r * 53 + d) * key_at(j, d);
        if (scores[static_cast<size_t>(r * kTileKeys + j)] != static_cast<float>(sum)) return false;
      }
    }
    // Weights in units of 2^-10: whole numbers plus one or two units, which a bfloat16 can't hold.
    const auto weight_at = [](int64_t r, int64_t j) {
      return small(r * 31 + j) * 1024 + small(r + j * 17);
    };
    std::vector<float> weights(scores.size()), alpha(static_cast<size_t>(rows), 0.5f);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < kKeys; ++j) {
        weights[static_cast<size_t>(r * kTileKeys + j)] =
            static_cast<float>(weight_at(r, j)) / 1024.0f;
      }
    }
    std::vector<float> output(static_cast<size_t>(rows * padded(kDim)), 6.0f);
    kernels.pack_values(kElement, values.data(), kDim * 2, kKeys, kDim, packed.data());
    kernels.accumulate(kElement, weights.data(), packed.data(), alpha.data(), rows, kKeys, kDim,
                       output.data());
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t d = 0; d < kDim; ++d) {
        int64_t sum = 3 * 1024;  // below 2^18, so float32 is exact in any order
        for (int64_t j = 0; j < kKeys; ++j) sum += weight_at(r, j) * value_at(j, d);
        const float found = output[static_cast<size_t>(r * padded(kDim) + d)];
        if (found != static_cast<float>(sum) / 1024.0f) return false;
      }
    }
  }
  return true;
}

}  // namespace blockscope
