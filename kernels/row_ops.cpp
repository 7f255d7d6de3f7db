#include "kernels/row_ops.h"

#include <ATen/ATen.h>

#include <array>

#include "kernels/cpu_support.h"
#include "kernels/row_kernels.h"
#include "kernels/shape_check.h"

namespace blockscope {
namespace {

constexpr int64_t kGrain = 1 << 14;  // elements that are worth a thread

/// Rows of up to 4 dimensions, by their number in the order of a contiguous tensor.
class Rows {
 public:
  explicit Rows(const at::Tensor& x)
      : data_(static_cast<const char*>(x.const_data_ptr())),
        bytes_(x.element_size()),
        dim_(x.size(-1)) {
    const int64_t outer = x.dim() - 1;
    for (int64_t d = 0; d < outer; ++d) {
      const auto at = static_cast<size_t>(3 - outer + d);
      size_[at] = x.size(d);
      stride_[at] = x.stride(d) * bytes_;
    }
    count_ = size_[0] * size_[1] * size_[2];
  }

  int64_t count() const { return count_; }
  int64_t dim() const { return dim_; }
  int64_t row_bytes() const { return dim_ * bytes_; }
  /// Where row `index` stands in the first, second and third of the dimensions before the last.
  std::array<int64_t, 3> place(int64_t index) const {
    return {index / (size_[1] * size_[2]), index / size_[2] % size_[1], index % size_[2]};
  }
  const char* at(const std::array<int64_t, 3>& place) const {
    return data_ + place[0] * stride_[0] + place[1] * stride_[1] + place[2] * stride_[2];
  }

 private:
  const char* data_;
  int64_t bytes_;
  int64_t dim_;
  int64_t count_ = 1;
  std::array<int64_t, 3> size_{1, 1, 1};
  std::array<int64_t, 3> stride_{};
};

void check_rows(const char* op, const char* name, const at::Tensor& x) {
  TORCH_CHECK(x.defined(), op, ": ", name, ": expected a tensor, got none");
  const at::ScalarType dtype = x.scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16, op, ": ", name,
              ": expected dtype Float, Half or BFloat16, got ", dtype,
              ". HINT: convert it with .to()");
  check_operand(op, name, x, dtype);
  TORCH_CHECK(x.dim() <= 4, op, ": ", name, ": expected up to 4 dimensions, got ", x.dim());
}

template <class Task>
void for_rows(const Rows& rows, const Task& task) {
  const auto run = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) task(i);
  };
  if (runs_serially() || rows.count() * rows.dim() <= kGrain) return run(0, rows.count());
  at::parallel_for(0, rows.count(), std::max<int64_t>(1, kGrain / std::max<int64_t>(1, rows.dim())),
                   run);
}

}  // namespace

at::Tensor rms_norm_rows(const at::Tensor& x, const at::Tensor& weight, double eps,
                         bool weight_first) {
  check_rows("rms_norm_rows", "x", x);
  check_operand("rms_norm_rows", "weight", weight, x.scalar_type());
  check_shape("rms_norm_rows", "weight", weight, {x.size(-1)});
  at::Tensor out = at::empty(x.sizes(), x.options());
  const Rows rows(x);
  const Element element = element_of(x);
  const void* scale = weight.const_data_ptr();
  auto* to = static_cast<char*>(out.data_ptr());
  for_rows(rows, [&](int64_t i) {
    best_row_kernels().rms_norm(element, rows.at(rows.place(i)), scale, rows.dim(),
                                static_cast<float>(eps), weight_first, to + i * rows.row_bytes());
  });
  return out;
}

at::Tensor rotate_rows(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  check_rows("rotate_rows", "x", x);
  check_shape("rotate_rows", "x", x, {-1, -1, -1, -1});
  const int64_t turning = cos.size(-1);
  TORCH_CHECK(turning % 2 == 0 && turning <= x.size(-1),
              "rotate_rows: cos expected an even number"
              " of channels up to ",
              x.size(-1), ", got ", turning);
  const at::ScalarType type = cos.scalar_type() == at::kFloat ? at::kFloat : x.scalar_type();
  for (const auto& [name, table] : {std::pair{"cos", &cos}, std::pair{"sin", &sin}}) {
    check_operand("rotate_rows", name, *table, type);
    const int64_t sequences = table->size(0) == 1 ? 1 : x.size(0);
    check_shape("rotate_rows", name, *table, {sequences, 1, x.size(2), turning});
  }
  check_shape("rotate_rows", "sin", sin, cos.sizes());
  at::Tensor out = at::empty(x.sizes(), x.options());
  const Rows rows(x);
  const Rows cosines(cos);
  const Rows sines(sin);
  const Element element = element_of(x);
  const Element table = element_of(cos);
  auto* to = static_cast<char*>(out.data_ptr());
  for_rows(rows, [&](int64_t i) {
    const auto place = rows.place(i);
    const std::array<int64_t, 3> entry{cos.size(0) == 1 ? 0 : place[0], 0, place[2]};
    best_row_kernels().rotate(element, rows.at(place), table, cosines.at(entry), sines.at(entry),
                              turning, rows.dim(), to + i * rows.row_bytes());
  });
  return out;
}

at::Tensor silu_multiply(const at::Tensor& gate, const at::Tensor& up) {
  check_rows("silu_multiply", "gate", gate);
  check_operand("silu_multiply", "up", up, gate.scalar_type());
  check_shape("silu_multiply", "up", up, gate.sizes());
  at::Tensor out = at::empty(gate.sizes(), gate.options());
  const Rows gates(gate);
  const Rows ups(up);
  const Element element = element_of(gate);
  auto* to = static_cast<char*>(out.data_ptr());
  for_rows(gates, [&](int64_t i) {
    const auto place = gates.place(i);
    best_row_kernels().silu_multiply(element, gates.at(place), ups.at(place), gates.dim(),
                                     to + i * gates.row_bytes());
  });
  return out;
}

BestTokens best_tokens(const at::Tensor& logits) {
  check_rows("best_tokens", "logits", logits);
  check_shape("best_tokens", "logits", logits, {-1, -1});
  const Rows rows(logits);
  BestTokens result;
  result.token.resize(static_cast<size_t>(rows.count()));
  result.probability.resize(result.token.size());
  const Element element = element_of(logits);
  for_rows(rows, [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    best_row_kernels().best(element, rows.at(rows.place(i)), rows.dim(), &result.token[at],
                            &result.probability[at]);
  });
  return result;
}

}  // namespace blockscope
