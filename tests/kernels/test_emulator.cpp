// The emulator: layouts of the instructions, and the mistakes that a kernel must not get away with.
// Each mistake is put into one small pipelined kernel, which is right without it, and seen caught
// with every seed.
#include "kernels/device/emulator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "kernels/device/device.h"

namespace blockscope::emulated {
namespace {

enum class Mistake {
  kNone,
  kNoBarrierAfterWait,
  kNoBarrierBeforeReuse,
  kWaitOneGroupShort,
  kOneKeyTooMany,
  kSwappedHalves,
  kPlainInsteadOfTransposed,
  kSkippedBarrier,
  kDivergentShuffle,
  kForgottenWait,
  kBehindShared,
  kMisalignedSource,
};

constexpr int kTileKeys = 64;
constexpr int kDim = 16;
constexpr int kWarps = 4;

struct Call {
  const BFloat16* rows;  // [64, 16]
  const BFloat16* keys;  // [num_keys, 16]
  int num_keys;
  float* sums;    // [64, 64]: sum over tiles of rows . keys
  float* totals;  // [64]: sum over all keys
};

// Sixteen rows a warp, tiles of 64 keys shared by all, two stages.
template <Mistake kMistake>
void pipelined(Call call) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int tiles = (call.num_keys + kTileKeys - 1) / kTileKeys;
  const auto stage = [](int tile) { return dynamic_shared() + tile % 2 * kTileKeys * kDim * 2; };
  const auto bring = [&](int tile) {
    const int key = tile * kTileKeys + thread / 2;
    const int end = call.num_keys + (kMistake == Mistake::kOneKeyTooMany ? 1 : 0);
    const int behind = kMistake == Mistake::kBehindShared ? 2 * kTileKeys * kDim * 2 : 0;
    const BFloat16* from = call.keys + (key < end ? key : 0) * kDim + thread % 2 * 8 +
                           (kMistake == Mistake::kMisalignedSource ? 1 : 0);
    if (tile < tiles) {
      copy_async_16(stage(tile) + thread * 16 + behind, from, key < end ? 16 : 0);
    }
    copy_async_commit();
  };
  uint32_t a[4];
  for (int i = 0; i < 4; ++i) {
    const int half = kMistake == Mistake::kSwappedHalves ? i / 2 : i % 2;
    const int next = kMistake == Mistake::kSwappedHalves ? i % 2 : i / 2;
    std::memcpy(&a[i],
                call.rows + (warp * 16 + half * 8 + lane / 4) * kDim + next * 8 + lane % 4 * 2, 4);
  }
  float c[8][4] = {};
  bring(0);
  for (int tile = 0; tile < tiles; ++tile) {
    if (kMistake != Mistake::kForgottenWait) {
      if (kMistake == Mistake::kNoBarrierBeforeReuse) bring(tile + 1);
      copy_async_wait<kMistake == Mistake::kWaitOneGroupShort      ? 1
                      : kMistake == Mistake::kNoBarrierBeforeReuse ? 1
                                                                   : 0>();
    }
    if (kMistake == Mistake::kSkippedBarrier && warp == 3 && tile == 1) continue;
    if (kMistake != Mistake::kNoBarrierAfterWait) __syncthreads();
    if (kMistake != Mistake::kNoBarrierBeforeReuse) bring(tile + 1);
    for (int n = 0; n < 4; ++n) {
      uint32_t b[4];
      const char* row =
          stage(tile) + (n * 16 + lane % 8 + lane / 16 * 8) * kDim * 2 + lane / 8 % 2 * 16;
      if (kMistake == Mistake::kPlainInsteadOfTransposed) {
        load_matrix_x4_transposed(b, row);
      } else {
        load_matrix_x4(b, row);
      }
      multiply_add(c[n * 2], a, b[0], b[1], BFloat16{});
      multiply_add(c[n * 2 + 1], a, b[2], b[3], BFloat16{});
    }
    if (kMistake == Mistake::kNoBarrierAfterWait) __syncthreads();
  }
  if (kMistake != Mistake::kForgottenWait) copy_async_wait<0>();
  for (int half = 0; half < 2; ++half) {
    float total = 0.0f;
    for (int n = 0; n < 8; ++n) {
      for (int i = 0; i < 2; ++i) {
        const int row = warp * 16 + half * 8 + lane / 4;
        call.sums[row * kTileKeys + n * 8 + lane % 4 * 2 + i] = c[n][half * 2 + i];
        total += c[n][half * 2 + i];
      }
    }
    if (kMistake == Mistake::kDivergentShuffle && thread == 7) {
      total += __shfl_xor_sync(~0u, total, 1);
    } else {
      total += __shfl_xor_sync(~0u, total, 1);
    }
    total += __shfl_xor_sync(~0u, total, 2);
    if (lane % 4 == 0) call.totals[warp * 16 + half * 8 + lane / 4] = total;
  }
}

// What went wrong, or an empty text.
std::string run(void (*kernel)(Call), uint64_t seed) {
  constexpr int kKeys = 5 * kTileKeys - 7;  // a tail, and every stage used again
  std::vector<BFloat16> storage(64 * kDim + kKeys * kDim + 16 * kDim);
  auto* rows = storage.data() + (16 - reinterpret_cast<uintptr_t>(storage.data()) % 16) % 16 / 2;
  BFloat16* keys = rows + 64 * kDim;
  std::vector<double> expected(64 * kTileKeys, 0.0);
  const auto number = [](int i) { return static_cast<float>((i * 37 + 11) % 29 - 14) / 8.0f; };
  for (int i = 0; i < 64 * kDim; ++i) rows[i] = round_to<BFloat16>(number(i));
  for (int i = 0; i < kKeys * kDim; ++i) keys[i] = round_to<BFloat16>(number(i * 3 + i / 7));
  for (int i = 0; i < kDim; ++i) keys[kKeys * kDim + i] = round_to<BFloat16>(NAN);
  for (int row = 0; row < 64; ++row) {
    for (int key = 0; key < kKeys; ++key) {
      for (int d = 0; d < kDim; ++d) {
        expected[static_cast<size_t>(row * kTileKeys + key % kTileKeys)] +=
            to_float(rows[row * kDim + d]) * to_float(keys[key * kDim + d]);
      }
    }
  }
  std::vector<float> sums(64 * kTileKeys, NAN);
  std::vector<float> totals(64, NAN);
  set_options({.seed = seed});
  try {
    launch(kernel, dim3{1, 1, 1}, dim3{kWarps * 32, 1, 1}, 2 * kTileKeys * kDim * 2, Stream{},
           Call{rows, keys, kKeys, sums.data(), totals.data()});
  } catch (const Fault& fault) {
    return fault.what();
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    if (!(std::abs(sums[i] - expected[i]) < 1e-3)) return "wrong sum " + std::to_string(sums[i]);
  }
  for (size_t row = 0; row < 64; ++row) {
    double total = 0.0;
    for (size_t key = 0; key < 64; ++key) total += expected[row * 64 + key];
    if (!(std::abs(totals[row] - total) < 1e-2)) return "wrong total";
  }
  return "";
}

constexpr uint64_t kSeeds = 20;

void expect_caught(void (*kernel)(Call), const std::string& text) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const std::string said = run(kernel, seed);
    EXPECT_NE(said, "") << "seed " << seed;
    EXPECT_NE(said.find(text), std::string::npos) << said;
  }
}

TEST(Emulator, TheKernelWithoutMistakeIsRightWithEverySeed) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed)
    EXPECT_EQ(run(pipelined<Mistake::kNone>, seed), "");
}

TEST(Emulator, CatchesRacesAndShortWaits) {
#if defined(__SANITIZE_ADDRESS__)  // ends the program at the poisoned byte, with the kernel's line
  for (void (*kernel)(Call) :
       {pipelined<Mistake::kNoBarrierAfterWait>, pipelined<Mistake::kNoBarrierBeforeReuse>,
        pipelined<Mistake::kWaitOneGroupShort>, pipelined<Mistake::kForgottenWait>}) {
    EXPECT_DEATH(run(kernel, 1), "use-after-poison");
  }
#else
  expect_caught(pipelined<Mistake::kNoBarrierAfterWait>, "wrong");
  expect_caught(pipelined<Mistake::kNoBarrierBeforeReuse>, "wrong");
  expect_caught(pipelined<Mistake::kWaitOneGroupShort>, "wrong");
  expect_caught(pipelined<Mistake::kForgottenWait>, "without waiting for its copies");
#endif
}

TEST(Emulator, CatchesWrongIndices) {
  expect_caught(pipelined<Mistake::kOneKeyTooMany>, "wrong");
  expect_caught(pipelined<Mistake::kSwappedHalves>, "wrong");
  expect_caught(pipelined<Mistake::kPlainInsteadOfTransposed>, "wrong");
  expect_caught(pipelined<Mistake::kBehindShared>, "of 4096 bytes of shared memory");
  expect_caught(pipelined<Mistake::kMisalignedSource>, "the source is not aligned");
}

TEST(Emulator, SaysWhoWaitsWhere) {
  expect_caught(pipelined<Mistake::kSkippedBarrier>, "__syncthreads at test_emulator.cpp:");
  expect_caught(pipelined<Mistake::kSkippedBarrier>, "threads 96 to 127: ");
  expect_caught(pipelined<Mistake::kDivergentShuffle>, "threads 7 to 7: __shfl_sync");
}

// Runs `body` as one warp.
void as_warp(std::size_t shared_bytes, const std::function<void(int lane)>& body) {
  run_grid({1, 1, 1}, {32, 1, 1}, shared_bytes, [&] { body(static_cast<int>(threadIdx.x)); });
}

TEST(Emulator, CopiesThatNobodyWaitedForAreAnError) {
  alignas(16) char source[16] = {};
  EXPECT_THROW(as_warp(512,
                       [&](int lane) {
                         copy_async_16(dynamic_shared() + lane * 16, source);
                         copy_async_commit();
                       }),
               Fault);
}

TEST(Emulator, SharedMemoryStartsAsNaNForEveryBlock) {
  int seen = 0;
  run_grid({3, 1, 1}, {32, 1, 1}, 128, [&] {
    float& value = reinterpret_cast<float*>(dynamic_shared())[threadIdx.x];
    if (std::isnan(value)) ++seen;
    value = 0.0f;
  });
  EXPECT_EQ(seen, 96);
}

// The products of the fragments against CuTe's published strides for
// SM80_16x8x16_F32BF16BF16F32_TN: A ((4,8),(2,2,2)):((32,1),(16,8,128)), B
// ((4,8),(2,2)):((16,1),(8,64)), C ((4,8),(2,2)):((32,1),(16,8)), column-major in (m,k), (n,k) and
// (m,n).
TEST(Emulator, FragmentsLieWhereCuTeSaysTheyDo) {
  for (const Rounding rounding : {Rounding::kNearest, Rounding::kTruncate}) {
    set_options({.seed = 3, .rounding = rounding});
    const auto a_of = [](int m, int k) { return static_cast<float>((m * 5 + k * 3) % 17 - 8); };
    const auto b_of = [](int n, int k) { return static_cast<float>((n * 7 + k * 2) % 13 - 6); };
    float result[16][8] = {};
    as_warp(0, [&](int lane) {
      float a_values[8];
      float b_values[4];
      for (int v = 0; v < 8; ++v) {
        const int at = lane % 4 * 32 + lane / 4 + v % 2 * 16 + v / 2 % 2 * 8 + v / 4 * 128;
        a_values[v] = a_of(at % 16, at / 16);
      }
      for (int v = 0; v < 4; ++v) {
        const int at = lane % 4 * 16 + lane / 4 + v % 2 * 8 + v / 2 * 64;
        b_values[v] = b_of(at % 8, at / 8);
      }
      uint32_t a[4];
      for (int i = 0; i < 4; ++i) {
        a[i] = pack_pair(a_values[i * 2], a_values[i * 2 + 1], BFloat16{});
      }
      float c[4] = {1.0f, 1.0f, 1.0f, 1.0f};
      multiply_add(c, a, pack_pair(b_values[0], b_values[1], BFloat16{}),
                   pack_pair(b_values[2], b_values[3], BFloat16{}), BFloat16{});
      for (int v = 0; v < 4; ++v) {
        const int at = lane % 4 * 32 + lane / 4 + v % 2 * 16 + v / 2 * 8;
        result[at % 16][at / 16] = c[v];
      }
    });
    for (int m = 0; m < 16; ++m) {
      for (int n = 0; n < 8; ++n) {
        float expected = 1.0f;
        for (int k = 0; k < 16; ++k) expected += a_of(m, k) * b_of(n, k);
        EXPECT_EQ(result[m][n], expected) << m << ", " << n;
      }
    }
  }
}

TEST(Emulator, CountsBankConflicts) {
  for (const int pitch : {16, 32, 128}) {
    counters() = {};
    as_warp(static_cast<std::size_t>(32 * pitch), [&](int lane) {
      uint32_t r[4];
      load_matrix_x4(r, dynamic_shared() + lane * pitch);
    });
    EXPECT_EQ(counters().bank_conflicts, pitch == 16 ? 0 : pitch == 32 ? 16 : 28) << pitch;
  }
}

TEST(Emulator, SixteenBitFloatsRoundToNearestEven) {
  EXPECT_EQ(round_to<BFloat16>(1.0f + 0x1p-8f).bits, 0x3f80);
  EXPECT_EQ(round_to<BFloat16>(1.0f + 0x3p-8f).bits, 0x3f82);
  EXPECT_TRUE(std::isnan(to_float(round_to<BFloat16>(NAN))));
  EXPECT_EQ(round_to<Half>(65519.0f).bits, 0x7bff);
  EXPECT_EQ(round_to<Half>(65520.0f).bits, 0x7c00);
  EXPECT_EQ(round_to<Half>(-0x1p-25f).bits, 0x8000);
  EXPECT_EQ(round_to<Half>(0x3p-25f).bits, 0x0002);
  EXPECT_TRUE(std::isnan(to_float(round_to<Half>(NAN))));
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Half half{static_cast<uint16_t>(bits)};
    if (std::isnan(to_float(half))) continue;
    EXPECT_EQ(round_to<Half>(to_float(half)).bits, bits);
  }
}

}  // namespace
}  // namespace blockscope::emulated
