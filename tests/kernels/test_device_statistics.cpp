// The statistics between two steps on the emulated device, compared with the CPU's.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/step_statistics.h"

namespace blockscope {
namespace {

using at::Tensor;

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr float kMissing = std::numeric_limits<float>::quiet_NaN();

/// Outputs and lses of a batch, and which entry counts.
struct Pair {
  Tensor outputs, lses;
  int64_t row = 0;

  HeadAttention on(at::Device device) const { return {outputs.to(device), lses.to(device), row}; }
};

Pair pair_of(const HeadShape& shape, int64_t row) {
  return {at::randn({row + 1, shape.heads, shape.block, shape.dim}),
          at::randn({row + 1, shape.heads, shape.block}), row};
}

void expect_close(const std::string& what, const Tensor& got, const Tensor& expected) {
  SCOPED_TRACE(what);
  ASSERT_EQ(got.defined(), expected.defined());
  if (!got.defined()) return;
  ASSERT_EQ(got.sizes(), expected.sizes());
  EXPECT_TRUE(at::allclose(got.cpu(), expected, 2e-5, 2e-6, /*equal_nan=*/true))
      << got.cpu() << expected;
}

void expect_equal(const LayerStatistics& got, const LayerStatistics& expected) {
  expect_close("mass", got.external_mass, expected.external_mass);
  expect_close("external", got.similarity_external, expected.similarity_external);
  expect_close("internal", got.similarity_internal, expected.similarity_internal);
  expect_close("errors", got.reuse_error, expected.reuse_error);
  expect_close("kept", got.kept, expected.kept);
  expect_close("gap", got.query.gap, expected.query.gap);
  expect_close("block gap", got.query.block_gap, expected.query.block_gap);
}

/// A step with all that a recorder compares: four rules, of which the third reads, rows that were
/// not computed, rows without external keys, and a zero vector.
struct Step {
  HeadShape shape;
  Pair external, internal, last_external, last_internal, older;
  std::vector<std::vector<uint8_t>> kinds;
  Tensor query, first_query;

  explicit Step(HeadShape of, at::ScalarType type) : shape(of) {
    at::manual_seed(shape.dim);
    external = pair_of(shape, 1);
    internal = pair_of(shape, 1);
    last_external = pair_of(shape, 0);
    last_internal = pair_of(shape, 2);
    older = pair_of(shape, 1);
    external.lses[1][0][1] = kNone;
    older.lses[1][shape.heads - 1][0] = kNone;
    last_external.outputs[0][0][0].zero_();
    for (Pair* pair : {&external, &internal}) {
      pair->outputs[1].select(1, shape.block - 1).fill_(kMissing);
      pair->lses[1].select(1, shape.block - 1).fill_(kMissing);
    }
    kinds.resize(4);
    for (auto& of_rows : kinds) {
      for (int64_t r = 0; r < shape.block; ++r) of_rows.push_back(static_cast<uint8_t>(r * 5 % 3));
    }
    query = at::randn({2, shape.block, shape.heads, shape.dim}).transpose(1, 2).to(type);
    first_query = at::randn({1, shape.heads, shape.block, shape.dim}).to(type);
    query[1][0][0].fill_(kMissing);
    first_query[0][0][1].zero_();
  }

  LayerStatistics on(at::Device device, bool prefix, bool last, bool by_kind) const {
    LayerStep step;
    step.internal = internal.on(device);
    if (last) step.last_internal = last_internal.on(device);
    if (prefix) {
      step.external = external.on(device);
      if (last) step.last_external = last_external.on(device);
      const HeadAttention kept = last_external.on(device);
      step.source = {kept, kept, step.external, older.on(device)};
      for (size_t t = 0; by_kind && t < kinds.size(); ++t) {
        step.source_kinds.push_back(t == 2 ? nullptr : kinds[t].data());
      }
    }
    const FirstRows first(first_query.to(device), 0);
    step.query = query.to(device);
    step.row = 1;
    step.first_query = &first;
    return layer_statistics(step, shape);
  }
};

TEST(DeviceStatistics, EqualTheCpus) {
  for (const HeadShape shape : {HeadShape{3, 5, 16}, HeadShape{2, 9, 100}, HeadShape{1, 33, 33}}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(shape.dim);
      const Step step(shape, type);
      for (const auto& [prefix, last, by_kind] : {std::tuple{true, true, true},
                                                  {true, true, false},
                                                  {true, false, true},
                                                  {false, true, false},
                                                  {false, false, false}}) {
        expect_equal(step.on(at::kCUDA, prefix, last, by_kind),
                     step.on(at::kCPU, prefix, last, by_kind));
      }
    }
  }
}

TEST(DeviceStatistics, NoRowGivesNaN) {
  Step step({2, 4, 8}, at::kFloat);
  for (Pair* pair : {&step.external, &step.internal}) {
    pair->outputs.fill_(kMissing);
    pair->lses.fill_(kMissing);
  }
  step.query.fill_(kMissing);
  const LayerStatistics got = step.on(at::kCUDA, true, true, true);
  expect_equal(got, step.on(at::kCPU, true, true, true));
  EXPECT_TRUE(got.external_mass.cpu().isnan().all().item<bool>());
}

TEST(DeviceStatistics, GapsOfLongRowsEqualTheCpus) {
  at::manual_seed(3);
  const Tensor hidden = at::randn({2, 1, 21, 700}).to(at::kBFloat16);
  const Tensor first = at::randn({2, 1, 21, 700}).to(at::kBFloat16);
  const auto gaps = [&](at::Device device) {
    return row_gaps(hidden.to(device), 1, FirstRows(first.to(device), 0));
  };
  const RowGaps got = gaps(at::kCUDA);
  const RowGaps expected = gaps(at::kCPU);
  expect_close("gap", got.gap, expected.gap);
  expect_close("block gap", got.block_gap, expected.block_gap);
}

TEST(DeviceStatistics, DivergencesEqualTheCpus) {
  at::manual_seed(4);
  const Tensor then = 4 * at::randn({3, 500});
  const Tensor now = (4 * at::randn({2, 500})).to(at::kFloat);
  const std::vector<bool> before{true, false, true, true};
  const std::vector<bool> after{true, true, false, false};
  const auto divergence = [&](at::Device device, at::ScalarType type) {
    const FirstPrediction first(PredictionRows(then.to(device, type), before));
    return masked_kl(first, PredictionRows(now.to(device, type), after), {true, true, true, false});
  };
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Tensor got = divergence(at::kCUDA, type);
    expect_close("kl", got, divergence(at::kCPU, type));
    EXPECT_EQ(got.isnan().sum().item<int64_t>(), 3);
  }
}

}  // namespace
}  // namespace blockscope
