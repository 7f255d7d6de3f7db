#include "kernels/packed_matrix.h"

#include <ATen/ATen.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "kernels/cpu_support.h"
#include "kernels/linear_kernels.h"
#include "kernels/shape_check.h"

namespace blockscope {
namespace {

/// Memory for weights that are streamed: chunks of huge pages, so that neighbours share them and
/// the prefetchers of the CPU, which stop at the end of a page, run on.
class StreamedMemory {
 public:
  at::Tensor take(std::vector<int64_t> shape) {
    const auto bytes = static_cast<size_t>(c10::multiply_integers(shape)) * 4;
    const std::lock_guard guard(mutex_);
    std::shared_ptr<Chunk> chunk = current_.lock();
    if (!chunk || chunk->size - chunk->used < bytes) {
      chunk = std::make_shared<Chunk>(std::max(bytes, kChunk));
      current_ = chunk;
    }
    char* data = chunk->data + chunk->used;
    chunk->used += (bytes + 63) / 64 * 64;
    chunk->used = std::min(chunk->used, chunk->size);
    return at::from_blob(
        data, shape, [chunk](void*) {}, at::kInt);
  }

 private:
  static constexpr size_t kHugePage = size_t{2} << 20;
  static constexpr size_t kChunk = size_t{64} << 20;

  struct Chunk {
    explicit Chunk(size_t bytes)
        : size((bytes + kHugePage - 1) / kHugePage * kHugePage),
          data(static_cast<char*>(std::aligned_alloc(kHugePage, size))) {
      if (data == nullptr) throw std::bad_alloc();
      madvise(data, size, MADV_HUGEPAGE);  // a hint: without it, pages are small
    }
    Chunk(const Chunk&) = delete;
    Chunk& operator=(const Chunk&) = delete;
    ~Chunk() { std::free(data); }

    size_t size = 0, used = 0;
    char* data = nullptr;
  };

  std::mutex mutex_;
  std::weak_ptr<Chunk> current_;  // the tensors own it
};

/// Rows [N, in] as 4-byte units [panels, columns, steps], zeros behind the last row.
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
              " inputs. HINT: ask PackedMatrix::fits first");
}

}  // namespace

/// What the products of one call share.
struct PackedProducts {
  const LinearKernels& kernels;
  const at::Tensor& x;  // [R, in]
  at::Tensor out;       // [R, out]

  struct Task {
    const PackedMatrix* matrix;
    int64_t row, rows, first_panel, end_panel;
  };

  // What a core does in a microsecond, by order of magnitude, and what starting threads is worth.
  static constexpr double kBytesPerUs = 2e4, kProductsPerUs = 5e4;
  static constexpr double kWorthThreadsUs = 8.0;
  static constexpr int64_t kTasksPerThread = 8;

  void run(std::span<const MatrixRows> matrices) const {
    double us = 0.0;
    for (const MatrixRows& m : matrices) {
      const auto weights = static_cast<double>(m.matrix->panels_.numel());
      us += m.rows == 0 ? 0.0
                        : std::max(weights * 4 / kBytesPerUs,
                                   weights * static_cast<double>(m.rows) / kProductsPerUs);
    }
    const int64_t threads = at::get_num_threads();
    const bool serial = threads == 1 || us < kWorthThreadsUs;
    const int64_t tasks_wanted = serial ? 1 : threads * kTasksPerThread;
    const auto busy = std::count_if(matrices.begin(), matrices.end(),
                                    [](const MatrixRows& m) { return m.rows > 0; });
    const int64_t pieces = (tasks_wanted + busy - 1) / std::max<int64_t>(busy, 1);
    std::vector<Task> tasks;
    int64_t row = 0;
    for (const MatrixRows& m : matrices) {
      const int64_t panels = m.matrix->panels_.size(0);
      const int64_t count = m.rows == 0 ? 0 : std::min(pieces, panels);
      for (int64_t i = 0; i < count; ++i) {
        tasks.push_back({m.matrix, row, m.rows, panels * i / count, panels * (i + 1) / count});
      }
      row += m.rows;
    }
    const auto task = [&](int64_t i) { multiply(tasks[static_cast<size_t>(i)]); };
    if (!serial) return parallel_tasks(std::ssize(tasks), task);
    for (int64_t i = 0; i < std::ssize(tasks); ++i) task(i);
  }

  void multiply(const Task& task) const {
    const PackedMatrix& matrix = *task.matrix;
    const int64_t element = x.element_size();
    const int64_t width = matrix.swiglu_ ? kPanelColumns / 2 : kPanelColumns;
    PanelProduct p;
    p.x_stride = x.stride(0) * element;
    p.x = static_cast<const char*>(x.const_data_ptr()) + task.row * p.x_stride;
    p.rows = task.rows;
    p.steps = matrix.panels_.size(1);
    p.out_stride = out.stride(0) * element;
    auto* to = static_cast<char*>(out.data_ptr()) + task.row * p.out_stride;
    const auto* panels = static_cast<const char*>(matrix.panels_.const_data_ptr());
    const auto* bias =
        matrix.bias_.defined() ? static_cast<const char*>(matrix.bias_.const_data_ptr()) : nullptr;
    for (int64_t panel = task.first_panel; panel < task.end_panel; ++panel) {
      const int64_t column = panel * width;
      p.panel = panels + panel * p.steps * kPanelStepBytes;
      p.bias = bias == nullptr ? nullptr : bias + column * element;
      p.out = to + column * element;
      p.columns = std::min(width, matrix.out_ - column);
      (matrix.swiglu_ ? kernels.swiglu : kernels.product)(p);
    }
  }

  static at::Tensor of(const at::Tensor& x, std::span<const MatrixRows> matrices) {
    const PackedMatrix& first = *matrices.front().matrix;
    check_operand("packed_products", "x", x, first.dtype_);
    check_shape("packed_products", "x", x, {-1, first.in_});
    int64_t rows = 0;
    for (const MatrixRows& m : matrices) {
      TORCH_CHECK(m.matrix->defined() && m.matrix->in_ == first.in_ &&
                      m.matrix->out_ == first.out_ && m.matrix->dtype_ == first.dtype_ &&
                      m.matrix->swiglu_ == first.swiglu_ && m.rows >= 0,
                  "packed_products: expected matrices of one kind, and no negative rows");
      rows += m.rows;
    }
    TORCH_CHECK(rows == x.size(0), "packed_products: x: expected ", rows, " rows, got ", x.size(0));
    const at::Tensor out = at::empty({rows, first.out_}, x.options());
    int64_t count = 0;
    const LinearKernels& kernels = *available_linear_kernels(element_of(x), &count)[0];
    PackedProducts{kernels, x, out}.run(matrices);
    return out;
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

PackedMatrix PackedMatrix::swiglu(const at::Tensor& gate, const at::Tensor& up) {
  check_weight("gate", gate);
  check_operand("packed_matrix", "up", up, gate.scalar_type());
  check_shape("packed_matrix", "up", up, gate.sizes());
  PackedMatrix matrix;
  matrix.dtype_ = gate.scalar_type();
  matrix.out_ = gate.size(0);
  matrix.in_ = gate.size(1);
  matrix.swiglu_ = true;
  constexpr int64_t kHalf = kPanelColumns / 2;
  matrix.panels_ = streamed(at::cat({units(gate, kHalf), units(up, kHalf)}, 1));
  return matrix;
}

at::Tensor PackedMatrix::operator()(const at::Tensor& x) const {
  const at::Tensor rows = x.reshape({-1, x.size(-1)}).contiguous();
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = out_;
  const MatrixRows all{this, rows.size(0)};
  return packed_products(rows, {&all, 1}).view(shape);
}

at::Tensor packed_products(const at::Tensor& x, std::span<const MatrixRows> matrices) {
  TORCH_CHECK(!matrices.empty(), "packed_products: expected at least one matrix, got none");
  return PackedProducts::of(x, matrices);
}

}  // namespace blockscope
