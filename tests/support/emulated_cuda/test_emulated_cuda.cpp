// Operators on the emulated device compared with the same operators on the CPU: bit for bit, unless
// ATen takes another path.
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/emulated_cuda.h"

namespace blockscope {
namespace {

using at::Tensor;
using ::testing::HasSubstr;
using Tensors = std::vector<Tensor>;

/// Tensors of every kind that the operators below take, made once on the CPU.
struct Inputs {
  Tensor a, b, row, matrix, half, index, flat_index, mask, cube, number;

  static Inputs on_cpu() {
    at::manual_seed(11);
    Inputs in;
    in.a = at::randn({6, 40});
    in.b = at::randn({6, 40});
    in.row = at::randn({40});
    in.matrix = at::randn({24, 40});
    in.half = at::randn({6, 40}).to(at::kBFloat16);
    in.index = at::randint(0, 40, {6, 5}, at::kLong);
    in.flat_index = at::tensor({3, 0, 5}, at::kLong);
    in.mask = at::randn({6, 40}) > 0.3;
    in.cube = at::randn({2, 3, 16, 24});
    in.number = at::scalar_tensor(2.5);
    return in;
  }

  Inputs on(at::Device device) const {
    Inputs in = *this;
    for (Tensor Inputs::*each :
         {&Inputs::a, &Inputs::b, &Inputs::row, &Inputs::matrix, &Inputs::half, &Inputs::index,
          &Inputs::flat_index, &Inputs::mask, &Inputs::cube, &Inputs::number}) {
      in.*each = (in.*each).to(device);
    }
    return in;
  }
};

struct Case {
  std::string name;
  std::function<Tensors(const Inputs&)> run;
  double tolerance = 0.0;  // 0: bit for bit
};

void PrintTo(const Case& shown, std::ostream* out) { *out << shown.name; }

#define CASE(name, ...)                     \
  {                                         \
    name, [](const Inputs& in) -> Tensors { \
      (void)in;                             \
      __VA_ARGS__                           \
    }                                       \
  }

std::vector<Case> cases() {
  return {
    CASE("add", return {in.a + in.b, in.a + 1.5, 2 - in.a, in.a + in.number};),
        CASE("promotion", return {in.half * in.a, in.half * 2.0, in.index + 1, in.index * 0.5,
                                  in.half + in.number};),
        CASE("mul_broadcast", return {in.a * in.row, in.cube * in.cube.select(0, 1)};),
        CASE("in_place", Tensor x = in.a.clone(); x.add_(in.b).mul_(2).clamp_min_(0);
             x.narrow(1, 3, 5).fill_(7); x.select(0, 2).copy_(in.row); return {x};),
        CASE("view_chain",
             return {in.cube.transpose(1, 2).reshape({2, 16, -1}),
                     in.cube.permute({3, 0, 2, 1}).contiguous(),
                     in.a.view({3, 2, 40}).flatten(0, 1), in.cube.unfold(2, 4, 2).clone(),
                     in.a.as_strided({3, 3}, {2, 5}, 1).clone(), in.row.expand({4, 40}).clone()};),
        CASE("view_shares", Tensor x = in.a.clone(); Tensor v = x.view({-1});
             v.narrow(0, 0, 10).zero_(); x.t().add_(1); return {x, v};),
        CASE("view_dtype", return {in.half.view(at::kShort), in.a.view(at::kInt)};),
        CASE("split_unbind", Tensors r = in.cube.unbind(1); Tensors s = in.a.split(4, 0);
             r.insert(r.end(), s.begin(), s.end()); Tensors c = in.a.chunk(5, 1);
             r.push_back(at::cat(c, 0)); return r;),
        CASE("cat_stack",
             return {at::cat({in.a, in.b}, -1), at::stack({in.a, in.b}, 1), in.a.repeat({2, 1})};),
        CASE("matmul", return {at::matmul(in.a, in.matrix.t()), at::linear(in.a, in.matrix),
                               in.a.mm(in.matrix.t()), at::matmul(in.cube, in.cube.transpose(2, 3)),
                               at::bmm(in.cube[0], in.cube[1].transpose(1, 2)),
                               at::linear(in.half, in.matrix.to(at::kBFloat16)),
                               at::addmm(in.matrix.select(1, 0), in.a, in.matrix.t())};),
        CASE("einsum", return {at::einsum("shtd,shud->shtu", {in.cube, in.cube})};),
        CASE("unary", return {in.a.exp(), in.a.cos(), in.a.sin(), at::silu(in.a), at::sigmoid(in.a),
                              in.a.abs().sqrt(), at::rsqrt(in.a.abs()), in.a.pow(2), in.a.neg(),
                              at::log(in.a.abs()), at::gelu(in.a), in.a.round(),
                              in.a.to(at::kDouble).log1p(), at::nan_to_num(in.a)};),
        CASE("softmax",
             return {at::softmax(in.a, -1), at::log_softmax(in.a, -1),
                     at::softmax(in.half, -1, at::kFloat), at::logsumexp(in.cube, {-1})};),
        CASE("reduce",
             return {in.a.sum(), in.a.sum(-1), in.a.mean(0), in.a.amax(-1), in.a.norm(2, {-1}),
                     in.a.prod(1), std::get<0>(in.a.max(1)), std::get<1>(in.a.max(1)),
                     in.a.argmax(-1), in.mask.any(1), in.mask.all(), in.a.var(1),
                     at::cumsum(in.a, 1), in.half.sum(-1), in.mask.sum(1)};),
        CASE("compare", return {in.a > in.b, in.a == in.b, in.a <= 0.0, at::isnan(in.a),
                                at::isfinite(in.a), ~in.mask, in.mask & (in.a > 0),
                                at::maximum(in.a, in.b), at::where(in.mask, in.a, in.b),
                                at::where(in.mask, in.a, 0.0), in.a.masked_fill(in.mask, -1)};),
        CASE("sort", auto [v, i] = in.a.sort(-1, true);
             auto [sv, si] = at::sort(in.a, /*stable=*/true, 1, false);
             return {v, i, sv, si, at::argsort(in.a)};),
        CASE("topk", auto [v, i] = in.a.topk(7, -1); auto [kv, ki] = in.a.kthvalue(3, 1);
             return {v, i, kv, ki};),
        CASE("index", return {in.a.index_select(0, in.flat_index), in.a.index({in.flat_index}),
                              in.a.gather(1, in.index), at::embedding(in.matrix, in.flat_index),
                              in.a.index({at::indexing::Slice(), in.flat_index}),
                              at::take_along_dim(in.a, in.index, 1)};),
        CASE("index_by_mask",
             return {in.a.index({in.mask}), in.a.masked_select(in.mask), in.mask.nonzero()};),
        CASE("index_put", Tensor x = in.a.clone();
             x.index_put_({in.flat_index}, in.b.narrow(0, 0, 3));
             x.index_put_({in.mask}, at::scalar_tensor(9.0, in.a.options()));
             x.index_copy_(0, in.flat_index, in.b.narrow(0, 3, 3)); x.scatter_(1, in.index, 3.0);
             x.index_add_(0, in.flat_index, in.b.narrow(0, 1, 3)); x.masked_fill_(in.mask, 4);
             return {x};),
        CASE("out", Tensor o = at::empty({0}, in.a.options()); at::add_out(o, in.a, in.b);
             Tensor p = at::empty({6, 24}, in.a.options()); at::mm_out(p, in.a, in.matrix.t());
             Tensor v = at::empty({0}, in.a.options());
             Tensor i = at::empty({0}, in.index.options()); at::topk_out(v, i, in.a, 3);
             Tensor n = at::empty({0}, in.index.options()); at::nonzero_out(n, in.mask);
             Tensor s = in.a.clone(); at::mul_out(s, s, s);
             Tensor part = at::zeros({6, 80}, in.a.options()); Tensor half = part.narrow(1, 40, 40);
             at::exp_out(half, in.a); return {o, p, v, i, n, s, part};),
        CASE("factories",
             return {at::arange(3, 30, 4, in.index.options()), at::zeros({3, 2}, in.a.options()),
                     at::full({2, 2}, 3.5, in.a.options()), at::ones_like(in.half),
                     at::eye(4, in.a.options()), at::linspace(0, 1, 7, in.a.options()),
                     at::tril(in.matrix), at::triu(in.matrix, 1), in.a.new_zeros({2}),
                     at::full_like(in.a, 2), at::scalar_tensor(4, in.a.options()),
                     at::one_hot(in.flat_index, 8)};),
        CASE("to",
             return {in.a.to(at::kHalf), in.half.to(at::kDouble), in.mask.to(at::kFloat),
                     in.a.to(at::kLong), in.cube.transpose(0, 1).to(at::kBFloat16).contiguous()};),
        CASE("pad_roll_flip",
             return {at::constant_pad_nd(in.a, {1, 2}, 0.5), in.a.roll(3, 1), in.a.flip({0})};),
        CASE("set_and_resize", Tensor x = in.a.clone(); Tensor y = at::empty({0}, in.a.options());
             y.set_(x); y.add_(1); Tensor z = at::zeros({2}, in.a.options());
             z.resize_({2, 2}).fill_(2); return {x, y, z};),
        CASE("norms", return {in.a * at::rsqrt(in.a.pow(2).mean(-1, true) + 1e-6) * in.row};),
        CASE("values", return {at::tensor({in.a.sum().item<double>(), in.index[0][1].item<double>(),
                                           in.mask.any().item<bool>() ? 1.0 : 0.0,
                                           at::equal(in.a, in.a) ? 1.0 : 0.0,
                                           in.a.is_set_to(in.a) ? 1.0 : 0.0})};),
        CASE("fill_diagonal", Tensor x = in.matrix.clone(); x.fill_diagonal_(-1);
             return {x, in.a.diagonal().clone()};),
        CASE("lerp_addcmul", return {at::lerp(in.a, in.b, 0.25), at::addcmul(in.a, in.b, in.row),
                                     in.a.clamp(-1, 1)};),
        CASE("searchsorted", return {at::searchsorted(std::get<0>(in.row.sort()), in.a),
                                     at::bincount(in.flat_index)};),
        {"layer_norm",
         [](const Inputs& in) -> Tensors { return {at::layer_norm(in.a, {40}, in.row)}; }, 1e-5},
        {"attention",
         [](const Inputs& in)
             -> Tensors { return {at::scaled_dot_product_attention(in.cube, in.cube, in.cube)}; },
         1e-5},
  };
}

std::string name_of(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }

class Operators : public ::testing::TestWithParam<Case> {};

TEST_P(Operators, EqualTheCpus) {
  const Inputs cpu = Inputs::on_cpu();
  const Inputs device = cpu.on(at::kCUDA);
  const Tensors expected = GetParam().run(cpu);
  const Tensors got = GetParam().run(device);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_TRUE(got[i].is_cuda() || GetParam().name == "values");
    ASSERT_EQ(got[i].sizes(), expected[i].sizes());
    ASSERT_EQ(got[i].scalar_type(), expected[i].scalar_type());
    const Tensor host = got[i].cpu();
    if (GetParam().tolerance > 0) {
      EXPECT_LT((host - expected[i]).abs().max().item<double>(), GetParam().tolerance);
    } else {
      EXPECT_TRUE(at::equal(at::nan_to_num(host, 77), at::nan_to_num(expected[i], 77)))
          << host << expected[i];
    }
  }
}

TEST_P(Operators, WorkInInferenceMode) {
  const c10::InferenceMode guard;
  const Inputs cpu = Inputs::on_cpu();
  const Tensors got = GetParam().run(cpu.on(at::kCUDA));
  const Tensors expected = GetParam().run(cpu);
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(
        at::allclose(got[i].cpu().to(at::kDouble), expected[i].to(at::kDouble), 1e-4, 1e-5, true));
  }
}

INSTANTIATE_TEST_SUITE_P(Emulated, Operators, ::testing::ValuesIn(cases()), name_of);

TEST(EmulatedCuda, IsCudaToLibTorch) {
  EXPECT_TRUE(at::hasCUDA());
  const Tensor x = at::zeros({2}, at::kCUDA);
  EXPECT_EQ(x.device(), at::Device(at::kCUDA, 0));
  EXPECT_TRUE(x.is_cuda());
  EXPECT_THROW(at::zeros({2}, at::Device(at::kCUDA, 1)), c10::Error);
}

TEST(EmulatedCuda, BackwardEqualsTheCpus) {
  const Inputs cpu = Inputs::on_cpu();
  const auto gradient = [](const Inputs& in) {
    Tensor w = in.matrix.clone().requires_grad_();
    const Tensor loss =
        at::log_softmax(at::silu(at::linear(in.a, w)), -1).index({at::indexing::Slice(), 0}).sum();
    loss.backward();
    return w.grad();
  };
  // Not bit for bit: the gradient of a product has another layout.
  EXPECT_TRUE(at::allclose(gradient(cpu.on(at::kCUDA)).cpu(), gradient(cpu), 1e-5, 1e-6));
}

TEST(EmulatedCuda, RandomNumbersComeFromItsOwnGenerator) {
  at::manual_seed(5);  // seeds both
  const Tensor host = at::rand({8});
  const Tensor device = at::rand({8}, at::kCUDA);
  EXPECT_TRUE(at::equal(at::rand({8}, at::kCUDA).cpu(), device.cpu()) == false);
  EXPECT_TRUE(at::equal(device.cpu(),
                        host));  // the same algorithm from the same seed, not the next 8 numbers
  const at::Generator of_cpu = at::detail::createCPUGenerator(1);
  EXPECT_THROW(at::empty({4}, at::kCUDA).normal_(0.0, 1.0, of_cpu), c10::Error);
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(EmulatedCuda, RefusesMixedDevicesWithCudasMessage) {
  const Inputs cpu = Inputs::on_cpu();
  const Inputs device = cpu.on(at::kCUDA);
  constexpr const char* kMixed = "Expected all tensors to be on the same device";
  EXPECT_THAT(error_of([&] { (void)(device.a + cpu.b); }), HasSubstr(kMixed));
  EXPECT_THAT(error_of([&] { (void)(cpu.b + device.a); }), HasSubstr(kMixed));
  EXPECT_THAT(error_of([&] { (void)at::linear(device.a, cpu.matrix); }), HasSubstr(kMixed));
  EXPECT_THAT(error_of([&] { (void)at::cat({device.a, cpu.b}); }), HasSubstr(kMixed));
  EXPECT_THAT(error_of([&] { (void)device.a.index_select(0, cpu.flat_index); }), HasSubstr(kMixed));
  EXPECT_THAT(error_of([&] { (void)at::embedding(device.matrix, cpu.flat_index); }),
              HasSubstr(kMixed));
  EXPECT_THAT(error_of([&] { (void)device.a.clone().index_copy_(0, cpu.flat_index, device.b); }),
              HasSubstr("same device"));
  EXPECT_THAT(error_of([&] { cpu.a.clone().add_(device.a); }), HasSubstr(kMixed));
  // What CUDA allows: numbers of the host, and indices for index and index_put_.
  EXPECT_TRUE(at::equal((device.a + cpu.number).cpu(), cpu.a + cpu.number));
  EXPECT_TRUE(at::equal(device.a.index({cpu.flat_index}).cpu(), cpu.a.index({cpu.flat_index})));
  const Tensor put = device.a.clone().index_put_({cpu.flat_index}, device.b.narrow(0, 0, 3));
  EXPECT_TRUE(
      at::equal(put.cpu(), cpu.a.clone().index_put_({cpu.flat_index}, cpu.b.narrow(0, 0, 3))));
}

TEST(EmulatedCuda, CountsWhatTheHostWaitsFor) {
  const Inputs in = Inputs::on_cpu().on(at::kCUDA);
  using Waits = std::map<std::string, int64_t>;
  const auto waits_of = [](const std::function<void()>& call) {
    emulated_cuda::reset_counters();
    call();
    return emulated_cuda::counters().waits;
  };
  EXPECT_EQ(waits_of([&] { (void)at::index(in.a, {in.mask}); }), (Waits{{"aten::nonzero", 1}}));
  EXPECT_EQ(waits_of([&] { (void)in.mask.nonzero(); }), (Waits{{"aten::nonzero", 1}}));
  EXPECT_EQ(waits_of([&] { (void)in.a.sum().item(); }), (Waits{{"item", 1}}));
  EXPECT_EQ(waits_of([&] { (void)in.a.cpu(); }), (Waits{{"copy to the host", 1}}));
  EXPECT_EQ(waits_of([&] {
              (void)at::tensor({1, 2}).to(at::kCUDA);
            }),
            (Waits{{"copy to the device", 1}}));
  EXPECT_EQ(waits_of([&] {
              (void)in.a.index_select(0, in.flat_index).softmax(-1).topk(2);
              (void)at::embedding(in.matrix, in.flat_index);
              (void)at::arange(0, 5, in.index.options());
              (void)in.a.clone().index_copy_(0, in.flat_index, in.b.narrow(0, 0, 3));
              (void)in.a.masked_fill(in.mask, 0).argmax(-1);
              (void)at::scaled_dot_product_attention(in.cube, in.cube, in.cube);
            }),
            Waits{});
  EXPECT_TRUE(emulated_cuda::counters().uncommon.empty());
}

TEST(EmulatedCuda, SaysWrongShapesAtOnce) {
  const Tensor a = at::zeros({2, 3}, at::kCUDA);
  EXPECT_THAT(error_of([&] { (void)a.mm(a); }), HasSubstr("cannot be multiplied"));
  EXPECT_THAT(error_of([&] { (void)(a + at::zeros({4}, at::kCUDA)); }), HasSubstr("must match"));
}

TEST(EmulatedCuda, EmptyMemoryIsNan) {
  EXPECT_TRUE(at::isnan(at::empty({1000}, at::kCUDA)).all().item<bool>());
  { const Tensor used = at::ones({1000}, at::kCUDA); }
  EXPECT_TRUE(
      at::isnan(at::empty({1000}, at::kCUDA)).all().item<bool>());  // also where another lay
  EXPECT_TRUE(
      at::isnan(at::empty({8}, at::dtype(at::kBFloat16).device(at::kCUDA))).all().item<bool>());
}

TEST(EmulatedCuda, GivesMemoryBackAndRunsOutOfIt) {
  (void)at::zeros({1}, at::kCUDA).item();
  const size_t before = emulated_cuda::allocated_bytes();
  {
    const Tensor big = at::zeros({1 << 20}, at::kCUDA);
    EXPECT_GE(emulated_cuda::allocated_bytes(), before + (size_t{4} << 20));
  }
  emulated_cuda::set_memory_limit(before + (size_t{2} << 20));
  EXPECT_THROW(at::zeros({1 << 20}, at::kCUDA), c10::OutOfMemoryError);
  emulated_cuda::set_memory_limit(size_t{8} << 30);
  (void)at::zeros({1 << 20}, at::kCUDA).sum().item();
}

#if defined(__SANITIZE_ADDRESS__)  // reports a fault itself
constexpr const char* kTouched = "AddressSanitizer: SEGV";
constexpr const char* kBehind = "AddressSanitizer: (SEGV|BUS)";
#else
constexpr const char* kTouched = "host code touched device memory";
constexpr const char* kBehind = "bytes behind a tensor";
#endif

TEST(EmulatedCudaDeathTest, HostCodeThatReadsDeviceMemoryDies) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Tensor x = at::ones({100}, at::kCUDA);
  (void)x.sum().item();
  EXPECT_DEATH(
      {
        volatile float read = x.const_data_ptr<float>()[3];
        (void)read;
      },
      kTouched);
  EXPECT_DEATH(x.data_ptr<float>()[3] = 1, kTouched);
}

TEST(EmulatedCudaDeathTest, KernelsMayReadATensorButNotBehindIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Tensor x = at::ones({1024}, at::kCUDA);
  float read = 0;
  emulated_cuda::launch_on_current_stream([&, p = x.const_data_ptr<float>()] { read = p[1023]; });
  (void)x.sum().item();
  EXPECT_EQ(read, 1.0F);
  EXPECT_DEATH(
      {
        emulated_cuda::launch_on_current_stream(
            [&, p = x.const_data_ptr<float>()] { read = p[1024]; });
        (void)x.sum().item();
      },
      kBehind);
}

}  // namespace
}  // namespace blockscope
