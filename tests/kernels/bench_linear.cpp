// Times products of few rows with weights that come from memory, as a decoding pass does them: each
// call multiplies another of many matrices. at::linear, oneDNN with weights laid out before (what
// LibTorch has for frozen models), and packed_matrix.h; every number is the least of the repeats.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/InferenceMode.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/cpu/packed_matrix.h"
#include "kernels/simd/linear_kernels.h"

namespace {

struct LinearShape {
  int64_t out, in;
};

/// OneDNN's operators, by name: they have no header.
at::Tensor reordered(const at::Tensor& weight) {
  using Reorder = at::Tensor(const at::Tensor&, std::optional<c10::SymInt>);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mkldnn::_reorder_linear_weight", "")
                             .typed<Reorder>();
  return op.call(weight, c10::SymInt(512));
}

at::Tensor by_onednn(const at::Tensor& x, const at::Tensor& weight) {
  using Product = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                             std::string_view, c10::List<std::optional<at::Scalar>>,
                             std::optional<std::string_view>);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                             .typed<Product>();
  return op.call(x, weight, std::nullopt, "none", c10::List<std::optional<at::Scalar>>(), "");
}

/// Seconds that multiplying with one of `count` matrices takes.
double seconds_each(int repeats, size_t count, const std::function<void(size_t)>& multiply) {
  double least = 1e9;
  for (int i = 0; i <= repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    for (size_t m = 0; m < count; ++m) multiply(m);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    if (i > 0) least = std::min(least, taken.count() / static_cast<double>(count));
  }
  return least;
}

void report(int64_t rows, const LinearShape& shape, double bytes, const char* what,
            double seconds) {
  const auto products = static_cast<double>(rows * shape.out * shape.in);
  std::printf("%4lld x %6lld x %4lld  %-14s %9.1f us %7.1f GFLOP/s %6.1f GB/s of weights\n",
              static_cast<long long>(rows), static_cast<long long>(shape.out),
              static_cast<long long>(shape.in), what, seconds * 1e6, 2 * products / seconds * 1e-9,
              bytes / seconds * 1e-9);
}

void bench(const LinearShape& shape, at::ScalarType dtype, const std::vector<int64_t>& row_counts,
           int repeats) {
  const at::Tensor first = at::randn({shape.out, shape.in}).to(dtype);
  if (!blockscope::PackedMatrix::fits(first)) {
    std::printf("this CPU has no kernel for %s\n", c10::toString(dtype));
    return;
  }
  const auto bytes = static_cast<double>(first.nbytes());
  const auto count = static_cast<size_t>(std::max(2.0, 256e6 / bytes));  // far beyond the caches
  std::vector<at::Tensor> plain;
  std::vector<at::Tensor> onednn;
  std::vector<blockscope::PackedMatrix> packed;
  for (size_t m = 0; m < count; ++m) {
    plain.push_back(first.clone());
    onednn.push_back(reordered(plain.back()));
    packed.emplace_back(plain.back());
  }
  for (const int64_t rows : row_counts) {
    const at::Tensor x = at::randn({rows, shape.in}).to(dtype);
    report(rows, shape, bytes, "at::linear",
           seconds_each(repeats, count, [&](size_t m) { at::linear(x, plain[m]); }));
    report(rows, shape, bytes, "oneDNN, packed",
           seconds_each(repeats, count, [&](size_t m) { by_onednn(x, onednn[m]); }));
    report(rows, shape, bytes, "ours",
           seconds_each(repeats, count, [&](size_t m) { packed[m](x); }));
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Products of few rows with weights from memory");
  int threads = 1;
  int repeats = 5;
  std::vector<int64_t> rows{1, 4, 8, 32, 512};
  app.add_option("--threads", threads, "CPU threads")->check(CLI::Range(1, 1024));
  app.add_option("--repeats", repeats, "The least of this many is printed")
      ->check(CLI::PositiveNumber);
  app.add_option("--rows", rows, "Rows of x")->delimiter(',')->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  const c10::InferenceMode guard;
  at::set_num_threads(threads);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    int64_t count = 0;
    const blockscope::LinearKernels* const* kernels = blockscope::available_linear_kernels(
        dtype == at::kFloat ? blockscope::Element::kFloat32 : blockscope::Element::kBFloat16,
        &count);
    std::printf("%s, %d threads, our kernels: %s\n", c10::toString(dtype), threads,
                count > 0 ? kernels[0]->name : "none");
    for (const LinearShape& shape :
         {LinearShape{768, 768}, {3072, 768}, {768, 3072}, {384, 1024}}) {
      bench(shape, dtype, rows, repeats);
    }
  }
  return 0;
}
