// cross_step_similarity: one cosine per row of D elements, in double (FlashBlock, Fig. 5).
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <cmath>

#include "kernels/cuda/device_operators.h"
#include "kernels/cuda/device_support.h"
#include "kernels/operator.h"
#include "kernels/ops.h"
#include "kernels/shape_check.h"

namespace blockscope {
namespace {

constexpr const char* kSimilarity = "cross_step_similarity";

template <class T>
float cosine(const T* a, const T* b, int64_t dim) {
  double dot = 0.0;
  double norm_a = 0.0;
  double norm_b = 0.0;
  for (int64_t d = 0; d < dim; ++d) {
    const auto x = static_cast<double>(a[d]);
    const auto y = static_cast<double>(b[d]);
    dot += x * y;
    norm_a += x * x;
    norm_b += y * y;
  }
  // Squares of float32 neither overflow nor vanish in double, so a zero norm means a zero vector.
  if (norm_a == 0.0 || norm_b == 0.0) return 0.0f;
  return static_cast<float>(dot / (std::sqrt(norm_a) * std::sqrt(norm_b)));
}

}  // namespace

at::Tensor cross_step_similarity(const at::Tensor& a, const at::Tensor& b) {
  if (const DeviceScope device{a}) {
    return device.run(cross_step_similarity_on, fallback::cross_step_similarity, a, b);
  }
  TORCH_CHECK(a.defined() && a.dim() > 0, kSimilarity, ": a: expected a tensor [..., D]");
  check_cpu(kSimilarity, "a", a, a.scalar_type());
  check_cpu(kSimilarity, "b", b, a.scalar_type());
  check_shape(kSimilarity, "b", b, a.sizes());
  const at::Tensor left = a.contiguous();
  const at::Tensor right = b.contiguous();
  const at::IntArrayRef sizes = a.sizes();
  const int64_t dim = sizes.back();
  at::Tensor result = at::empty(sizes.slice(0, sizes.size() - 1), a.options().dtype(at::kFloat));
  float* cosines = result.mutable_data_ptr<float>();
  constexpr int64_t kRowsPerTask = 64;
  AT_DISPATCH_SWITCH(a.scalar_type(), kSimilarity,
                     AT_DISPATCH_CASE_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, [&] {
                       const scalar_t* x = left.const_data_ptr<scalar_t>();
                       const scalar_t* y = right.const_data_ptr<scalar_t>();
                       at::parallel_for(
                           0, result.numel(), kRowsPerTask, [&](int64_t begin, int64_t end) {
                             for (int64_t row = begin; row < end; ++row) {
                               cosines[row] = cosine(x + row * dim, y + row * dim, dim);
                             }
                           });
                     }));
  return result;
}

// --- on a device

at::Tensor cross_step_similarity_on(const DeviceQueue& queue, const at::Tensor& a,
                                    const at::Tensor& b) {
  TORCH_CHECK(a.defined() && a.dim() > 0, kSimilarity, ": a: expected a tensor [..., D]");
  const at::ScalarType type = a.scalar_type();
  TORCH_CHECK(type == at::kFloat || type == at::kHalf || type == at::kBFloat16, kSimilarity,
              ": a: expected dtype Float, Half or BFloat16 on a GPU, got ", type);
  check_tensor(kSimilarity, "b", b, type, a.device());
  check_shape(kSimilarity, "b", b, a.sizes());
  const at::Tensor left = a.contiguous();
  const at::Tensor right = b.contiguous();
  const at::IntArrayRef sizes = a.sizes();
  const at::Tensor result =
      at::empty(sizes.slice(0, sizes.size() - 1), a.options().dtype(at::kFloat));
  SimilarityCall call;
  call.type = device_float(a);
  call.dim = device_int(kSimilarity, "D", sizes.back());
  call.rows = result.numel();
  call.a = left.const_data_ptr();
  call.b = right.const_data_ptr();
  call.cosines = result.mutable_data_ptr<float>();
  if (call.rows > 0) queue.launch(queue.kernels.similarity, call);
  return result;
}

TORCH_LIBRARY_FRAGMENT(blockscope, m) {
  define_operator(m, "cross_step_similarity(Tensor a, Tensor b) -> Tensor", cross_step_similarity,
                  [](const at::Tensor& a, const at::Tensor&) { return meta::float_rows(a); });
}

}  // namespace blockscope
