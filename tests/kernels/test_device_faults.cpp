// Operators of ops.h on the emulated cuda:0, with emulated kernels, with inputs and devices
// that are not as they should be. The CPU's operators are the judge.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "kernels/row_ops.h"
#include "tests/support/emulated_cuda.h"

namespace blockscope {
namespace {

using at::Tensor;
using FaultTensors = std::vector<Tensor>;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kLength = 70;

struct FaultArguments {
  Tensor q, k_ext, v_ext, k_in, v_in, index, cached, cached_lse, lse;

  static FaultArguments random(at::ScalarType type) {
    at::manual_seed(11);
    FaultArguments a;
    a.q = at::randn({1, 6, 5, 16}).to(type);
    a.k_ext = at::randn({1, 2, 80, 16}).to(type);
    a.v_ext = at::randn({1, 2, 80, 16}).to(type);
    a.k_in = at::randn({1, 2, 5, 16}).to(type);
    a.v_in = at::randn({1, 2, 5, 16}).to(type);
    a.index =
        at::stack({at::randperm(kLength).narrow(0, 0, 9), at::randperm(kLength).narrow(0, 0, 9)})
            .unsqueeze(0)
            .to(at::kInt);
    a.cached = at::randn({1, 6, 5, 16});
    a.cached_lse = at::randn({1, 6, 5});
    a.lse = at::full({1, 6, 5}, 6.0f);
    return a;
  }

  FaultArguments mapped(const std::function<Tensor(const Tensor&)>& map) const {
    FaultArguments a = *this;
    for (Tensor* each :
         {&a.q, &a.k_ext, &a.v_ext, &a.k_in, &a.v_in, &a.index, &a.cached, &a.cached_lse, &a.lse}) {
      *each = map(*each);
    }
    return a;
  }
  Tensor weight() const { return k_in.select(0, 0).select(0, 0).select(0, 0); }
  FaultArguments on_cuda() const {
    return mapped([](const Tensor& tensor) { return tensor.to(at::kCUDA); });
  }
};

Tensor length() { return at::full({1}, kLength, at::kLong); }

template <class Result>
FaultTensors fault_parts(const Result& r) {
  return {r.out, r.external, r.lse_external, r.internal, r.lse_internal};
}

struct Operator {
  std::string name;
  std::function<FaultTensors(const FaultArguments&)> call;
};

/// Ends around the two keys that are poisoned; the first ranges and one further on are empty.
WeightSpread spread_question() {
  WeightSpread spread;
  spread.ends = {{0, 0, 9, 33, 34, 34, 66, kLength}};
  return spread;
}
FaultTensors spread_parts(const WeightSpread& s) {
  return {s.entropy, s.largest, s.range, s.key, s.offset};
}

Tensor some_heads() { return at::tensor({1, 0, 1, 0, 0, 1}).to(at::kBool).unsqueeze(0); }

const std::vector<Operator>& operators() {
  static const std::vector<Operator> all = {
      {"split_attention",
       [](const FaultArguments& a) {
         return fault_parts(split_attention(a.q, a.k_ext, a.v_ext, length(), a.k_in, a.v_in, 0.25));
       }},
      {"reuse_attention",
       [](const FaultArguments& a) {
         return fault_parts(reuse_attention(a.q, a.k_ext, a.v_ext, length(), a.k_in, a.v_in,
                                            a.cached, a.cached_lse, some_heads(), 0.25));
       }},
      {"reuse_attention with rows",
       [](const FaultArguments& a) {
         Tensor rows = at::zeros({1, a.q.size(2)}, at::kBool);
         rows[0].slice(0, 0, a.q.size(2), 3).fill_(true);
         return fault_parts(reuse_attention(
             a.q, a.k_ext, a.v_ext, length(), a.k_in, a.v_in, a.cached, a.cached_lse,
             at::ones({a.q.size(1)}, at::kBool), 0.25, nullptr, rows));
       }},
      {"gather_attention",
       [](const FaultArguments& a) {
         return fault_parts(
             gather_attention(a.q, a.k_ext, a.v_ext, length(), a.index, a.k_in, a.v_in, 0.25));
       }},
      {"split_attention's spread",
       [](const FaultArguments& a) {
         WeightSpread spread = spread_question();
         split_attention(a.q, a.k_ext, a.v_ext, length(), a.k_in, a.v_in, 0.25, nullptr, &spread);
         return spread_parts(spread);
       }},
      {"reuse_attention's spread",
       [](const FaultArguments& a) {
         WeightSpread spread = spread_question();
         reuse_attention(a.q, a.k_ext, a.v_ext, length(), a.k_in, a.v_in, a.cached, a.cached_lse,
                         some_heads(), 0.25, &spread);
         return spread_parts(spread);
       }},
      {"gather_attention's spread",
       [](const FaultArguments& a) {
         WeightSpread spread = spread_question();
         gather_attention(a.q, a.k_ext, a.v_ext, length(), a.index, a.k_in, a.v_in, 0.25, {}, {},
                          {}, &spread);
         return spread_parts(spread);
       }},
      {"unselected_attention",
       [](const FaultArguments& a) {
         const PartialAttention r =
             unselected_attention(a.q, a.k_ext, a.v_ext, length(), a.index, 0.25);
         return FaultTensors{r.output, r.lse};
       }},
      {"prefill_attention",
       [](const FaultArguments& a) {
         return FaultTensors{prefill_attention(a.q, a.k_ext, a.v_ext, length(), 4, 0.25, 60)};
       }},
      {"topk_sets",
       [](const FaultArguments& a) {
         const TopKSets r = topk_sets(a.q, a.k_ext, length(), a.lse, 8, 0.25, true);
         return FaultTensors{r.index, r.probability, r.union_size, r.token_index,
                             r.token_probability};
       }},
      {"page_scores",
       [](const FaultArguments& a) {
         const PageBounds bounds = page_bounds(a.k_ext, length(), 16);
         return FaultTensors{bounds.max, bounds.min, page_scores(a.q, bounds, length(), 16),
                             token_page_scores(a.q, bounds, length(), 16)};
       }},
      {"merge_attention",
       [](const FaultArguments& a) {
         const MergedAttention r =
             merge_attention({a.cached, a.q.to(at::kFloat)}, {a.cached_lse, a.lse});
         return FaultTensors{r.out, r.lse};
       }},
      {"rms_norm_rows",
       [](const FaultArguments& a) {
         const SumAndNorm r = add_rms_norm_rows(a.k_in, a.v_in, a.weight(), 1e-6, false);
         return FaultTensors{rms_norm_rows(a.q, a.weight(), 1e-6, true), r.sum, r.norm};
       }},
      {"norm_rotate_rows",
       [](const FaultArguments& a) {
         const Tensor table = a.v_in.narrow(1, 0, 1).contiguous();
         return norm_rotate_rows({{a.q, a.weight(), 1e-6, true}, {a.k_in, {}, 0.0, false}}, table,
                                 table);
       }},
      {"silu_multiply",
       [](const FaultArguments& a) { return FaultTensors{silu_multiply(a.k_in, a.v_in)}; }},
      {"cross_step_similarity",
       [](const FaultArguments& a) {
         return FaultTensors{cross_step_similarity(a.q, a.q.roll(1, 2))};
       }},
  };
  return all;
}

/// The same finite numbers, and others at the same places.
void expect_same_places(const FaultTensors& device, const FaultTensors& cpu, double tolerance) {
  ASSERT_EQ(device.size(), cpu.size());
  for (size_t i = 0; i < cpu.size(); ++i) {
    SCOPED_TRACE(i);
    const Tensor got = device[i].cpu().to(at::kDouble);
    const Tensor expected = cpu[i].to(at::kDouble);
    EXPECT_TRUE(at::equal(got.isfinite(), expected.isfinite())) << got << expected;
    EXPECT_TRUE(at::equal(got.isneginf(), expected.isneginf()));
    const auto finite = [](const Tensor& tensor) { return tensor.nan_to_num(0.0, 0.0, 0.0); };
    EXPECT_TRUE(at::allclose(finite(got), finite(expected), tolerance, tolerance));
  }
}

class DeviceFaults : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  double tolerance() const { return GetParam() == at::kFloat ? 1e-5 : 1e-2; }
};

TEST_P(DeviceFaults, NanIsWhereTheCpuHasIt) {
  using Poison = std::function<void(FaultArguments&)>;
  const std::vector<std::pair<std::string, Poison>> poisons = {
      {"q", [](FaultArguments& a) { a.q.select(1, 4).select(1, 2).select(1, 7).fill_(kNaN); }},
      {"q infinite", [](FaultArguments& a) { a.q[0][1][0][3] = INFINITY; }},
      {"k_ext", [](FaultArguments& a) { a.k_ext[0][1][33][0] = kNaN; }},
      {"k_in", [](FaultArguments& a) { a.k_in[0][0][4][15] = kNaN; }},
      {"v_in", [](FaultArguments& a) { a.v_in[0][1][2][5] = kNaN; }},
      {"behind the length",
       [](FaultArguments& a) {
         a.k_ext.narrow(2, kLength, 10).fill_(kNaN);
         a.v_ext.narrow(2, kLength, 10).fill_(kNaN);
       }},
  };
  for (const auto& [what, poison] : poisons) {
    FaultArguments a = FaultArguments::random(GetParam());
    poison(a);
    for (const Operator& op : operators()) {
      SCOPED_TRACE(op.name + ", " + what);
      expect_same_places(op.call(a.on_cuda()), op.call(a), tolerance());
    }
  }
}

/// The same elements in rows that are far apart, and not at multiples of 16 bytes.
Tensor strided(const Tensor& tensor) {
  if (tensor.dim() < 4) return tensor.to(at::kCUDA);
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes.back() += 3;
  return at::full(sizes, 7, tensor.options().device(at::kCUDA))
      .narrow(3, 1, tensor.size(3))
      .copy_(tensor);
}

/// [S, T, H, D] in memory.
Tensor transposed(const Tensor& tensor) {
  if (tensor.dim() < 4) return tensor.to(at::kCUDA);
  return tensor.transpose(1, 2).contiguous().to(at::kCUDA).transpose(1, 2);
}

TEST_P(DeviceFaults, LayoutChangesNothing) {
  const FaultArguments a = FaultArguments::random(GetParam());
  for (const Operator& op : operators()) {
    SCOPED_TRACE(op.name);
    const FaultTensors expected = op.call(a.on_cuda());
    for (const auto& layout : {strided, transposed}) {
      const FaultTensors got = op.call(a.mapped(layout));
      for (size_t i = 0; i < expected.size(); ++i) {
        // NaN is equal to NaN here: the spread of a head that reuses.
        EXPECT_TRUE(at::allclose(got[i].cpu(), expected[i].cpu(), 0.0, 0.0, true)) << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, DeviceFaults, ::testing::Values(at::kFloat, at::kBFloat16));

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

TEST(DeviceFault, MixedDevicesAreNamed) {
  using ::testing::AllOf;
  using ::testing::HasSubstr;
  const FaultArguments cpu = FaultArguments::random(at::kFloat);
  const FaultArguments cuda = cpu.on_cuda();
  const auto expect_refusal = [&](const char* op, const char* name,
                                  const std::function<void()>& call) {
    EXPECT_THAT(refusal(call), AllOf(HasSubstr(op), HasSubstr(name))) << op << " " << name;
  };
  expect_refusal("split_attention", "k_ext", [&] {
    split_attention(cuda.q, cpu.k_ext, cuda.v_ext, length(), cuda.k_in, cuda.v_in, 0.25);
  });
  expect_refusal("split_attention", "v_in", [&] {
    split_attention(cuda.q, cuda.k_ext, cuda.v_ext, length(), cuda.k_in, cpu.v_in, 0.25);
  });
  expect_refusal("split_attention", "ext_len", [&] {
    split_attention(cuda.q, cuda.k_ext, cuda.v_ext, length().to(at::kCUDA), cuda.k_in, cuda.v_in,
                    0.25);
  });
  expect_refusal("split_attention", "k_ext", [&] {  // the first tensor decides
    split_attention(cpu.q, cuda.k_ext, cuda.v_ext, length(), cuda.k_in, cuda.v_in, 0.25);
  });
  expect_refusal("reuse_attention", "cached_external", [&] {
    reuse_attention(cuda.q, cuda.k_ext, cuda.v_ext, length(), cuda.k_in, cuda.v_in, cpu.cached,
                    cuda.cached_lse, some_heads(), 0.25);
  });
  expect_refusal("reuse_attention", "refresh_rows", [&] {
    reuse_attention(cuda.q, cuda.k_ext, cuda.v_ext, length(), cuda.k_in, cuda.v_in, cuda.cached,
                    cuda.cached_lse, some_heads(), 0.25, nullptr,
                    at::ones({1, cuda.q.size(2)}, at::kBool).to(at::kCUDA));
  });
  expect_refusal("gather_attention", "index", [&] {
    gather_attention(cuda.q, cuda.k_ext, cuda.v_ext, length(), cpu.index, cuda.k_in, cuda.v_in,
                     0.25);
  });
  expect_refusal("topk_sets", "lse",
                 [&] { topk_sets(cuda.q, cuda.k_ext, length(), cpu.lse, 8, 0.25, true); });
  expect_refusal("rms_norm_rows", "weight",
                 [&] { rms_norm_rows(cuda.q, cpu.weight(), 1e-6, false); });
  expect_refusal("add_rms_norm_rows", "y",
                 [&] { add_rms_norm_rows(cuda.k_in, cpu.v_in, cuda.weight(), 1e-6, false); });
  expect_refusal("rotate_rows", "sin",
                 [&] { rotate_rows(cuda.q, cuda.q.narrow(1, 0, 1), cpu.q.narrow(1, 0, 1)); });
  expect_refusal("silu_multiply", "up", [&] { silu_multiply(cuda.k_in, cpu.v_in); });
  expect_refusal("cross_step_similarity", "b", [&] { cross_step_similarity(cuda.q, cpu.q); });
}

TEST(DeviceFault, SetsAreCheckedUnlessTheyAreTrusted) {
  const FaultArguments a = FaultArguments::random(at::kFloat).on_cuda();
  const auto gather = [&](const Tensor& index) {
    return fault_parts(
        gather_attention(a.q, a.k_ext, a.v_ext, length(), index, a.k_in, a.v_in, 0.25));
  };
  Tensor wrong = a.index.cpu();
  Tensor left_out = wrong.clone();
  wrong[0][0][3] = kLength;
  left_out[0][0][3] = -1;
  wrong[0][1][5] = wrong[0][1][2];
  left_out[0][1][5] = -1;
  EXPECT_THAT(refusal([&] { gather(wrong.to(at::kCUDA)); }),
              ::testing::HasSubstr("gather_attention: index[0, 0]"));
  const FaultTensors expected = gather(left_out.to(at::kCUDA));
  emulated_cuda::reset_counters();
  const TrustedSetsScope trusted;
  const FaultTensors got = gather(wrong.to(at::kCUDA, at::kInt, /*non_blocking=*/true));
  EXPECT_EQ(emulated_cuda::counters().host_waits(), 0);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i].cpu(), expected[i].cpu()));
}

TEST(DeviceFault, MemoryThatRunsOutIsNamedAndGivenBack) {
  const FaultArguments a = FaultArguments::random(at::kFloat).on_cuda();
  const auto call = [&] { operators().front().call(a).front().cpu(); };
  call();
  const size_t before = emulated_cuda::allocated_bytes();
  emulated_cuda::set_memory_limit(before + 8192);
  EXPECT_THROW(call(), c10::OutOfMemoryError);
  emulated_cuda::set_memory_limit(size_t{8} << 30);
  call();
  EXPECT_EQ(emulated_cuda::allocated_bytes(), before);
}

TEST(DeviceFault, ALostDeviceStaysLost) {
  const FaultArguments a = FaultArguments::random(at::kFloat).on_cuda();
  const Tensor there = a.q.clone();
  there.cpu();
  emulated_cuda::lose_device_at(1);
  EXPECT_THROW(operators().front().call(a).front().cpu(), c10::AcceleratorError);
  EXPECT_THROW(there.cpu(), c10::AcceleratorError);
  EXPECT_THROW(there.add(1), c10::AcceleratorError);
  emulated_cuda::lose_device_at(0);
  EXPECT_TRUE(at::equal(there.cpu(), a.q.cpu()));
}

}  // namespace
}  // namespace blockscope
