// The linear kernels of AMX: the code that ships, its tile instructions executed by the processor
// or, where it has none, in emulation. This program also has the cases of test_packed_matrix.cpp,
// with packed_matrix.cpp made to take these kernels.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

#include "kernels/cpu/packed_matrix.h"
#include "kernels/simd/amx_support.h"
#include "kernels/simd/instruction_set.h"
#include "kernels/simd/linear_kernels.h"
#include "tests/kernels/amx_emulation.h"
#include "tests/support/at_the_edge.h"
#include "tests/support/seed.h"

namespace blockscope {

// Takes the place of the shared library's own, for all of this program.
const LinearKernels* const* available_linear_kernels(Element element, int64_t* count) {
  static const LinearKernels* const float32 = &kLinearKernelsAvx512;
  static const LinearKernels* const bfloat16 = &kLinearKernelsAmx;
  static const bool runs = [] {
    if (!has_avx512()) return false;  // AMX or not, what these kernels do besides needs it
    if (!may_use_amx()) testing::install_amx_traps();
    return true;
  }();
  *count = runs && element != Element::kFloat16 ? 1 : 0;
  return element == Element::kFloat32 ? &float32 : &bfloat16;
}

namespace testing {
namespace {

using AmxNumbers = AtTheEdge<uint16_t>;

char* bytes_of(AmxNumbers& numbers) { return reinterpret_cast<char*>(numbers.data()); }

double value_of(uint16_t bfloat16) {
  return std::bit_cast<float>(static_cast<uint32_t>(bfloat16) << 16);
}

void fill(AmxNumbers& numbers, SeededRandom& random) {
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto number = static_cast<float>(random.normal());
    numbers[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(number) >> 16);
  }
}

/// Rows of `steps` pairs and a panel; every buffer ends where it must not be left.
struct Case {
  static constexpr uint16_t kUntouched = 0x7eef;

  Case(int64_t row_count, int64_t step_count, int64_t column_count, uint64_t seed)
      : rows(row_count),
        steps(step_count),
        columns(column_count),
        x((rows - 1) * kPitch + 2 * steps),
        panel(steps * kPanelColumns * 2),
        bias(columns),
        out((rows - 1) * kPanelColumns + columns) {
    SeededRandom random(seed);
    for (AmxNumbers* numbers : {&x, &panel, &bias}) fill(*numbers, random);
  }

  std::vector<uint16_t> product(bool biased) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = kUntouched;
    PanelProduct p;
    p.x = bytes_of(x);
    p.x_stride = kPitch * 2;
    p.rows = rows;
    p.panel = bytes_of(panel);
    p.steps = steps;
    p.bias = biased ? bytes_of(bias) : nullptr;
    p.out = bytes_of(out);
    p.out_stride = kPanelColumns * 2;
    p.columns = columns;
    kLinearKernelsAmx.product(p);
    return {&out[0], &out[0] + out.size()};
  }

  /// The exact product at row r, column c, and the sum of its terms' sizes.
  std::pair<double, double> exact(int64_t r, int64_t c, bool biased) {
    double sum = biased ? value_of(bias[static_cast<size_t>(c)]) : 0.0;
    double size = std::abs(sum);
    for (int64_t d = 0; d < 2 * steps; ++d) {
      const int64_t at = d / 2 * 2 * kPanelColumns + 2 * c + d % 2;
      const double term = value_of(x[static_cast<size_t>(r * kPitch + d)]) *
                          value_of(panel[static_cast<size_t>(at)]);
      sum += term;
      size += std::abs(term);
    }
    return {sum, size};
  }

  static constexpr int64_t kPitch = 150;  // elements from row to row
  int64_t rows, steps, columns;
  AmxNumbers x, panel, bias, out;
};

void expect_exact(Case& c, bool biased) {
  const std::vector<uint16_t> got = c.product(biased);
  int64_t wrong = 0;
  for (int64_t i = 0; i < std::ssize(got); ++i) {
    const int64_t row = i / kPanelColumns;
    const int64_t column = i % kPanelColumns;
    const uint16_t found = got[static_cast<size_t>(i)];
    if (column >= c.columns) {
      wrong += found != Case::kUntouched;
      continue;
    }
    const auto [sum, size] = c.exact(row, column, biased);
    wrong += !(std::abs(value_of(found) - sum) <= std::abs(sum) / 256 + 5e-7 * size);
  }
  EXPECT_EQ(wrong, 0) << c.rows << " rows, " << c.steps << " steps, " << c.columns << " columns";
}

class LinearKernelsAmx : public ::testing::Test {
 protected:
  void SetUp() override {
    int64_t count = 0;
    available_linear_kernels(Element::kBFloat16, &count);
    if (count == 0) GTEST_SKIP() << "needs AVX-512";
  }
};

TEST_F(LinearKernelsAmx, EqualPlainLoopsAndLeaveNoBuffer) {
  uint64_t seed = 1;
  for (int64_t rows = 1; rows <= 70; ++rows) {
    for (const int64_t steps : {1, 15, 16, 17, 48, 75}) {
      Case c(rows, steps, (rows * 7 + steps) % kPanelColumns + 1, seed++);
      expect_exact(c, seed % 2 == 0);
    }
  }
  for (int64_t steps = 1; steps <= 75; ++steps) {
    Case c(35, steps, kPanelColumns, seed++);
    expect_exact(c, steps % 2 == 0);
  }
}

TEST_F(LinearKernelsAmx, GiveARowTheSameBitsWhateverIsBesideIt) {
  for (const int64_t steps : {9, 64, 75}) {
    Case all(70, steps, kPanelColumns, 3);
    const std::vector<uint16_t> together = all.product(true);
    for (int64_t rows = 1; rows <= 70; ++rows) {  // the last ones of all
      Case some(rows, steps, kPanelColumns, 3);
      const auto skipped = static_cast<size_t>(70 - rows);
      std::memcpy(bytes_of(some.panel), bytes_of(all.panel), all.panel.size() * 2);
      std::memcpy(bytes_of(some.bias), bytes_of(all.bias), all.bias.size() * 2);
      std::memcpy(bytes_of(some.x), bytes_of(all.x) + skipped * Case::kPitch * 2,
                  some.x.size() * 2);
      const std::vector<uint16_t> alone = some.product(true);
      const auto first = together.begin() + static_cast<int64_t>(skipped) * kPanelColumns;
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), first)) << rows << " rows";
    }
  }
}

TEST_F(LinearKernelsAmx, RunInTheEmulationWhereTheProcessorHasNoTiles) {
  const int64_t before = emulated_tile_products();
  Case c(1, 16, kPanelColumns, 1);
  c.product(false);
  EXPECT_EQ(emulated_tile_products() - before, may_use_amx() ? 0 : 2);
  PackedMatrix(at::ones({32, 32}, at::kBFloat16))(at::ones({17, 32}, at::kBFloat16));
  EXPECT_EQ(emulated_tile_products() - before, may_use_amx() ? 0 : 2 + 4);
  EXPECT_FALSE(emulated_tiles_are_configured()) << "left behind";
}

TEST_F(LinearKernelsAmx, ProveThemselvesAndFailIfOneSumIsWrong) {
  EXPECT_TRUE(multiplies_exactly(kLinearKernelsAmx));
  LinearKernels wrong = kLinearKernelsAmx;
  wrong.product = [](const PanelProduct& p) {  // the last row is missing
    PanelProduct fewer = p;
    fewer.rows -= 1;
    kLinearKernelsAmx.product(fewer);
  };
  EXPECT_FALSE(multiplies_exactly(wrong));
  wrong.product = [](const PanelProduct& p) {  // the last step is missing
    PanelProduct fewer = p;
    fewer.steps -= 1;
    kLinearKernelsAmx.product(fewer);
  };
  EXPECT_FALSE(multiplies_exactly(wrong));
  wrong.product = [](const PanelProduct& p) {  // the halves of the panel, the wrong way round
    std::vector<char> panel(static_cast<size_t>(p.steps * kPanelStepBytes));
    for (size_t i = 0; i < panel.size(); ++i) panel[i] = p.panel[i ^ 64];
    PanelProduct swapped = p;
    swapped.panel = panel.data();
    kLinearKernelsAmx.product(swapped);
  };
  EXPECT_FALSE(multiplies_exactly(wrong));
}

// --- the emulation itself

/// What LDTILECFG reads, of tiles 0 (sums), 1 and 2 (operands).
std::array<uint8_t, 64> config(std::array<int, 3> rows, std::array<int, 3> row_bytes) {
  std::array<uint8_t, 64> bytes{1};
  for (size_t i = 0; i < 3; ++i) {
    bytes[16 + 2 * i] = static_cast<uint8_t>(row_bytes[i]);
    bytes[48 + i] = static_cast<uint8_t>(rows[i]);
  }
  return bytes;
}

TEST(TileUnit, AddsProductsOfPairsInItsOwnOrder) {
  TileUnit unit;
  unit.load_config(config({1, 1, 2}, {8, 8, 8}).data());
  const auto bf16 = [](float x) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16); };
  // Two columns of two pairs. In the second, 2^24 + (1 + 1) is not ((2^24 + 1) + 1).
  const std::array x{bf16(1), bf16(1), bf16(2), bf16(1)};
  const std::array weights{bf16(2), bf16(4), bf16(16777216.0f), bf16(1),
                           bf16(6), bf16(8), bf16(0),           bf16(1)};
  std::array<float, 2> sums{1.5f, 0.0f};
  unit.load(0, reinterpret_cast<const char*>(sums.data()), 8);
  unit.load(1, reinterpret_cast<const char*>(x.data()), 8);
  unit.load(2, reinterpret_cast<const char*>(weights.data()), 8);
  unit.add_products(0, 1, 2);
  unit.store(0, reinterpret_cast<char*>(sums.data()), 8);
  EXPECT_EQ(sums[0], 27.5f);
  EXPECT_EQ(sums[1], 16777218.0f);
}

TEST(TileUnit, RefusesWhatWouldFault) {
  TileUnit unit;
  std::array<char, 1024> memory{};
  EXPECT_THROW(unit.zero(0), std::logic_error) << "before a configuration";
  EXPECT_THROW(unit.load_config(memory.data()), std::logic_error) << "palette";
  EXPECT_THROW(unit.load_config(config({17, 1, 1}, {64, 4, 64}).data()), std::logic_error);
  EXPECT_THROW(unit.load_config(config({16, 1, 1}, {68, 4, 64}).data()), std::logic_error);
  EXPECT_THROW(unit.load_config(config({0, 1, 1}, {64, 4, 64}).data()), std::logic_error);
  unit.load_config(config({3, 3, 16}, {64, 64, 64}).data());
  EXPECT_THROW(unit.load(3, memory.data(), 64), std::logic_error) << "not configured";
  EXPECT_THROW(unit.add_products(0, 0, 2), std::logic_error);
  EXPECT_THROW(unit.add_products(0, 2, 1), std::logic_error);
  EXPECT_NO_THROW(unit.add_products(0, 1, 2));
  unit.load_config(config({3, 3, 15}, {64, 64, 64}).data());
  EXPECT_THROW(unit.add_products(0, 1, 2), std::logic_error) << "depth";
  unit.load_config(config({3, 2, 16}, {64, 64, 64}).data());
  EXPECT_THROW(unit.add_products(0, 1, 2), std::logic_error) << "rows";
  unit.load_config(config({3, 3, 16}, {32, 64, 64}).data());
  EXPECT_THROW(unit.add_products(0, 1, 2), std::logic_error) << "columns";
  unit.release();
  EXPECT_THROW(unit.zero(0), std::logic_error) << "after the release";
}

}  // namespace
}  // namespace testing
}  // namespace blockscope
