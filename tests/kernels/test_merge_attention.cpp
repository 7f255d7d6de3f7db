// merge_attention: the algebra of the (output, lse) merge, and its edges.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kernels/ops.h"
#include "tests/kernels/attention_case.h"

namespace blockscope::testing {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

struct Part {
  at::Tensor output;  // [2, 3, 5, 48]
  at::Tensor lse;     // [2, 3, 5]
};

Part random_part(SeededRandom& random, double lse_offset = 0.0) {
  const at::Tensor output = random_tensor({2, 3, 5, 48}, at::kFloat, random);
  const at::Tensor lse = random_tensor({2, 3, 5}, at::kFloat, random, 3.0);
  return {output, lse + lse_offset};
}

MergedAttention merge(const std::vector<Part>& parts) {
  std::vector<at::Tensor> outputs;
  std::vector<at::Tensor> lses;
  for (const Part& part : parts) {
    outputs.push_back(part.output);
    lses.push_back(part.lse);
  }
  return merge_attention(outputs, lses);
}

Part as_part(const MergedAttention& merged) { return {merged.out, merged.lse}; }

void expect_close(const MergedAttention& a, const MergedAttention& b) {
  EXPECT_TRUE(close_to(to_doubles(a.out), to_doubles(b.out), {1e-12, 2e-6}));
  EXPECT_TRUE(close_to(to_doubles(a.lse), to_doubles(b.lse), {1e-12, 4e-6}));
}

TEST(MergeAttention, EqualsTheFloat64Reference) {
  SeededRandom random(1);
  for (const size_t count : {1u, 2u, 3u, 7u}) {
    std::vector<Part> parts;
    for (size_t i = 0; i < count; ++i) parts.push_back(random_part(random));
    const MergedAttention got = merge(parts);
    std::vector<double> out;
    std::vector<double> lse;
    for (int64_t row = 0; row < 30; ++row) {
      std::vector<ReferenceRow> sides;
      for (const Part& part : parts) {
        sides.push_back(
            {to_doubles(part.output.view({30, 48})[row]), part.lse.view({30})[row].item<double>()});
      }
      const ReferenceRow expected = merge_reference(sides);
      append(out, expected.output);
      lse.push_back(expected.lse);
    }
    EXPECT_TRUE(close_to(to_doubles(got.out), out, {1e-12, 2e-6}));
    EXPECT_TRUE(close_to(to_doubles(got.lse), lse, {1e-12, 4e-6}));
  }
}

TEST(MergeAttention, AssociatesAndCommutes) {
  SeededRandom random(2);
  const Part a = random_part(random);
  const Part b = random_part(random, 4.0);
  const Part c = random_part(random, -4.0);
  const MergedAttention all = merge({a, b, c});
  expect_close(all, merge({as_part(merge({a, b})), c}));
  expect_close(all, merge({a, as_part(merge({b, c}))}));
  expect_close(all, merge({c, b, a}));
  EXPECT_TRUE(at::equal(merge({a, b}).out, merge({b, a}).out));
}

TEST(MergeAttention, AnEmptyPartIsTheIdentityBitForBit) {
  SeededRandom random(3);
  const Part a = random_part(random);
  const Part b = random_part(random);
  // What an empty part holds must not matter.
  const Part empty = {at::full({2, 3, 5, 48}, NAN), at::full({2, 3, 5}, kMinusInfinity)};
  for (const auto& parts : std::vector<std::vector<Part>>{{a}, {a, empty}, {empty, a}}) {
    EXPECT_TRUE(at::equal(merge(parts).out, a.output));
    EXPECT_TRUE(at::equal(merge(parts).lse, a.lse));
  }
  EXPECT_TRUE(at::equal(merge({a, empty, b}).out, merge({a, b}).out));
}

TEST(MergeAttention, AllEmptyGivesZeroAndMinusInfinity) {
  const Part empty = {at::full({2, 3, 5, 48}, NAN), at::full({2, 3, 5}, kMinusInfinity)};
  const MergedAttention got = merge({empty, empty});
  EXPECT_TRUE(at::equal(got.out, at::zeros({2, 3, 5, 48})));
  EXPECT_TRUE(at::equal(got.lse, empty.lse));
}

TEST(MergeAttention, LsesOfTenThousandAreExact) {
  const auto one = [](float output, float lse) -> Part {
    return {at::full({1, 1}, output), at::full({1}, lse)};
  };
  EXPECT_EQ(merge({one(2.0f, 1e4f), one(6.0f, 1e4f)}).out.item<float>(), 4.0f);
  EXPECT_EQ(merge({one(2.0f, -1e4f), one(6.0f, -1e4f)}).out.item<float>(), 4.0f);
  EXPECT_FLOAT_EQ(merge({one(2.0f, -1e4f), one(6.0f, -1e4f)}).lse.item<float>(),
                  -1e4f + std::log(2.0f));
  const MergedAttention far = merge({one(2.0f, -1e4f), one(6.0f, 1e4f)});
  EXPECT_EQ(far.out.item<float>(), 6.0f);
  EXPECT_EQ(far.lse.item<float>(), 1e4f);
}

TEST(MergeAttention, NaNIsNotTakenForAnEmptyPart) {
  SeededRandom random(4);
  Part a = random_part(random);
  const Part b = random_part(random);
  a.lse[0][1][2] = NAN;
  const MergedAttention got = merge({a, b});
  EXPECT_TRUE(got.out[0][1][2].isnan().all().item<bool>());
  EXPECT_TRUE(std::isnan(got.lse[0][1][2].item<float>()));
  EXPECT_EQ(got.lse.isnan().sum().item<int64_t>(), 1);
}

TEST(MergeAttention, HalfPrecisionPartsAreMergedInFloat32AndRoundedOnce) {
  SeededRandom random(5);
  Part a = random_part(random);
  Part b = random_part(random);
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    a.output = a.output.to(dtype);
    b.output = b.output.to(dtype);
    const MergedAttention got = merge({a, b});
    const MergedAttention wide =
        merge({{a.output.to(at::kFloat), a.lse}, {b.output.to(at::kFloat), b.lse}});
    EXPECT_TRUE(at::equal(got.out, wide.out.to(dtype)));
  }
}

TEST(MergeAttention, WrongArgumentsThrow) {
  SeededRandom random(6);
  const Part a = random_part(random);
  EXPECT_THROW(merge_attention({}, {}), c10::Error);
  EXPECT_THROW(merge_attention({a.output}, {}), c10::Error);
  EXPECT_THROW(merge_attention({a.output}, {a.lse.slice(2, 1)}), c10::Error);
  EXPECT_THROW(merge_attention({a.output}, {a.lse.to(at::kDouble)}), c10::Error);
  EXPECT_THROW(merge_attention({a.output, a.output.to(at::kHalf)}, {a.lse, a.lse}), c10::Error);
  EXPECT_THROW(merge_attention({a.output, a.output.slice(3, 1)}, {a.lse, a.lse}), c10::Error);
}

}  // namespace
}  // namespace blockscope::testing
