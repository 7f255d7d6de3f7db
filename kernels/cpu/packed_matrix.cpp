#include "kernels/cpu/packed_matrix.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "kernels/cpu/cpu_support.h"
#include "kernels/cpu/huge_pages.h"
#include "kernels/shape_check.h"
#include "kernels/simd/linear_kernels.h"

namespace blockscope {
namespace {

/// Memory for streamed weights: chunks of huge pages that neighbouring matrices share.
class StreamedMemory {
 public:
  at::Tensor take(std::vector<int64_t> shape) {
    const auto bytes = static_cast<size_t>(c10::multiply_integers(shape)) * 4;
    const std::lock_guard guard(mutex_);
    std::shared_ptr<HugePages> chunk = current_.lock();
    if (!chunk || chunk->size() - used_ < bytes) {
      chunk = std::make_shared<HugePages>(std::max(bytes, kChunk));
      current_ = chunk;
      used_ = 0;
    }
    char* data = chunk->data() + used_;
    used_ = std::min(used_ + (bytes + 63) / 64 * 64, chunk->size());
    return at::from_blob(
        data, shape, [chunk](void*) {}, at::kInt);
  }

 private:
  static constexpr size_t kChunk = size_t{64} << 20;

  std::mutex mutex_;
  std::weak_ptr<HugePages> current_;  // the tensors own it
  size_t used_ = 0;
};

/// Rows [N, in] as 4-byte units [panels, columns, steps], with zeros after the last row.
at::Tensor units(const at::Tensor& rows, int64_t columns) {
  const at::Tensor plain = rows.detach().contiguous().view(at::kInt);
  const int64_t panels = (plain.size(0) + columns - 1) / columns;
  const at::Tensor padded = at::constant_pad_nd(plain, {0, 0, 0, panels * columns - plain.size(0)});
  return padded.view({panels, columns, plain.size(1)});
}

at::Tensor streamed(const at::Tensor& panels_of_units) {
  static StreamedMemory memory;
  const at::Tensor by_step = panels_of_units.transpose(1, 2);
  return memory.take(by_step.sizes().vec()).copy_(by_step);
}

void check_weight(const char* name, const at::Tensor& weight) {
  TORCH_CHECK(weight.defined() && weight.dim() == 2, "packed_matrix: ", name,
              ": expected a tensor of 2 dimensions");
  TORCH_CHECK(PackedMatrix::fits(weight), "packed_matrix: ", name,
              ": no kernel of this CPU for dtype ", weight.scalar_type(), " and ", weight.size(1),
              " inputs. HINT: call PackedMatrix::fits first");
}

}  // namespace

/// The products of one call.
struct PackedProducts {
  const LinearKernels& kernels;
  const at::Tensor& x;  // [R, in]

  /// Multiplies rows of x with a matrix and writes the same rows of `out`.
  struct Part {
    const PackedMatrix* matrix;
    int64_t row, rows;
    at::Tensor out;  // [rows, out]
  };
  struct Task {
    const Part* part;
    int64_t first_panel, end_panel;
  };

  // Orders of magnitude: the work of a core in a microsecond, and the work that is worth threads.
  static constexpr double kBytesPerUs = 2e4, kProductsPerUs = 5e4;
  static constexpr double kWorthThreadsUs = 8.0;
  static constexpr int64_t kTasksPerThread = 8;
  // The part of x that stays in a second-level cache together with two panels.
  static constexpr int64_t kRowBytesAtOnce = int64_t{1} << 19;

  void run(const std::vector<Part>& parts) const {
    double us = 0.0;
    for (const Part& part : parts) {
      const auto weights = static_cast<double>(part.matrix->panels_.numel());
      us += std::max(weights * 4 / kBytesPerUs,
                     weights * static_cast<double>(part.rows) / kProductsPerUs);
    }
    const int64_t threads = at::get_num_threads();
    const bool serial = threads == 1 || us < kWorthThreadsUs;
    const int64_t tasks_wanted = serial ? 1 : threads * kTasksPerThread;
    const int64_t count = std::max<int64_t>(std::ssize(parts), 1);
    const int64_t pieces = (tasks_wanted + count - 1) / count;
    std::vector<Task> tasks;
    for (const Part& part : parts) {
      const int64_t panels = part.matrix->panels_.size(0);
      const int64_t mine = std::min(pieces, panels);
      for (int64_t i = 0; i < mine; ++i) {
        tasks.push_back({&part, panels * i / mine, panels * (i + 1) / mine});
      }
    }
    const auto task = [&](int64_t i) { multiply(tasks[static_cast<size_t>(i)]); };
    if (!serial) return parallel_tasks(std::ssize(tasks), task);
    for (int64_t i = 0; i < std::ssize(tasks); ++i) task(i);
  }

  void multiply(const Task& task) const {
    const PackedMatrix& matrix = *task.part->matrix;
    const int64_t element = x.element_size();
    const int64_t width = matrix.gated_ ? kPanelColumns / 2 : kPanelColumns;
    PanelProduct p;
    p.x_stride = x.stride(0) * element;
    const char* rows = static_cast<const char*>(x.const_data_ptr()) + task.part->row * p.x_stride;
    p.steps = matrix.panels_.size(1);
    p.out_stride = task.part->out.stride(0) * element;
    auto* to = static_cast<char*>(task.part->out.data_ptr());
    const auto* panels = static_cast<const char*>(matrix.panels_.const_data_ptr());
    const auto* bias =
        matrix.bias_.defined() ? static_cast<const char*>(matrix.bias_.const_data_ptr()) : nullptr;
    const int64_t at_once = std::max<int64_t>(kRowBytesAtOnce / (p.steps * 4) / 64 * 64, 64);
    for (int64_t row = 0; row < task.part->rows; row += at_once) {
      p.x = rows + row * p.x_stride;
      p.rows = std::min(at_once, task.part->rows - row);
      for (int64_t panel = task.first_panel; panel < task.end_panel; ++panel) {
        const int64_t column = panel * width;
        p.panel = panels + panel * p.steps * kPanelStepBytes;
        p.bias = bias == nullptr ? nullptr : bias + column * element;
        p.out = to + row * p.out_stride + column * element;
        p.columns = std::min(width, matrix.out_ - column);
        kernel_of(matrix)(p);
      }
    }
  }

  void (*kernel_of(const PackedMatrix& matrix) const)(const PanelProduct&) {
    if (!matrix.gated_) return kernels.product;
    return matrix.activation_ == Activation::silu ? kernels.swiglu : kernels.geglu;
  }

  static PackedProducts checked(const at::Tensor& x, const PackedMatrix& first) {
    check_operand("packed_products", "x", x, first.dtype_);
    check_shape("packed_products", "x", x, {-1, first.in_});
    int64_t count = 0;
    return {*available_linear_kernels(element_of(x), &count)[0], x};
  }

  /// Matrices of one shape, times consecutive rows.
  static at::Tensor by_rows(const at::Tensor& x, std::span<const MatrixRows> matrices) {
    const PackedMatrix& first = *matrices.front().matrix;
    const PackedProducts products = checked(x, first);
    const at::Tensor out = at::empty({x.size(0), first.out_}, x.options());
    std::vector<Part> parts;
    int64_t rows = 0;
    for (const MatrixRows& m : matrices) {
      TORCH_CHECK(m.matrix->defined() && m.matrix->in_ == first.in_ &&
                      m.matrix->out_ == first.out_ && m.matrix->dtype_ == first.dtype_ &&
                      m.matrix->gated_ == first.gated_ &&
                      m.matrix->activation_ == first.activation_ && m.rows >= 0,
                  "packed_products: expected matrices of one kind, and no negative rows");
      TORCH_CHECK(rows + m.rows <= x.size(0), "packed_products: x: expected at least ",
                  rows + m.rows, " rows, got ", x.size(0));
      if (m.rows > 0) parts.push_back({m.matrix, rows, m.rows, out.narrow(0, rows, m.rows)});
      rows += m.rows;
    }
    TORCH_CHECK(rows == x.size(0), "packed_products: x: expected ", rows, " rows, got ", x.size(0));
    products.run(parts);
    return out;
  }

  /// Matrices of one depth, times the same rows.
  static std::vector<at::Tensor> by_columns(const at::Tensor& x,
                                            const std::vector<const PackedMatrix*>& matrices) {
    const PackedMatrix& first = *matrices.front();
    std::vector<int64_t> shape = x.sizes().vec();
    const at::Tensor rows = x.reshape({-1, x.size(-1)}).contiguous();
    const PackedProducts products = checked(rows, first);
    std::vector<Part> parts;
    std::vector<at::Tensor> outs;
    for (const PackedMatrix* matrix : matrices) {
      TORCH_CHECK(matrix->defined() && matrix->in_ == first.in_ && matrix->dtype_ == first.dtype_,
                  "packed_products: expected matrices of one depth and dtype");
      const at::Tensor out = at::empty({rows.size(0), matrix->out_}, x.options());
      shape.back() = matrix->out_;
      outs.push_back(out.view(shape));
      if (rows.size(0) > 0) parts.push_back({matrix, 0, rows.size(0), out});
    }
    products.run(parts);
    return outs;
  }
};

bool PackedMatrix::fits(const at::Tensor& weight) {
  const at::ScalarType dtype = weight.scalar_type();
  if (!weight.is_cpu() || weight.numel() == 0) return false;
  if (dtype != at::kFloat && dtype != at::kBFloat16) return false;
  int64_t count = 0;
  available_linear_kernels(element_of(weight), &count);
  return count > 0 && weight.size(-1) * weight.element_size() % 4 == 0;
}

PackedMatrix::PackedMatrix(const at::Tensor& weight, const at::Tensor& bias)
    : dtype_(weight.scalar_type()) {
  check_weight("weight", weight);
  out_ = weight.size(0);
  in_ = weight.size(1);
  if (bias.defined()) {
    check_operand("packed_matrix", "bias", bias, dtype_);
    check_shape("packed_matrix", "bias", bias, {out_});
    bias_ = bias.detach().contiguous();
  }
  panels_ = streamed(units(weight, kPanelColumns));
}

PackedMatrix PackedMatrix::gated(const at::Tensor& gate, const at::Tensor& up,
                                 Activation activation) {
  check_weight("gate", gate);
  check_operand("packed_matrix", "up", up, gate.scalar_type());
  check_shape("packed_matrix", "up", up, gate.sizes());
  PackedMatrix matrix;
  matrix.dtype_ = gate.scalar_type();
  matrix.out_ = gate.size(0);
  matrix.in_ = gate.size(1);
  matrix.gated_ = true;
  matrix.activation_ = activation;
  constexpr int64_t kHalf = kPanelColumns / 2;
  matrix.panels_ = streamed(at::cat({units(gate, kHalf), units(up, kHalf)}, 1));
  return matrix;
}

at::Tensor PackedMatrix::operator()(const at::Tensor& x) const {
  return packed_products(x, std::vector<const PackedMatrix*>{this}).front();
}

at::Tensor packed_products(const at::Tensor& x, std::span<const MatrixRows> matrices) {
  TORCH_CHECK(!matrices.empty(), "packed_products: expected at least one matrix, got none");
  return PackedProducts::by_rows(x, matrices);
}

std::vector<at::Tensor> packed_products(const at::Tensor& x,
                                        const std::vector<const PackedMatrix*>& matrices) {
  TORCH_CHECK(!matrices.empty(), "packed_products: expected at least one matrix, got none");
  return PackedProducts::by_columns(x, matrices);
}

}  // namespace blockscope
