#include "kernels/row_ops.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernels/cpu/rows.h"
#include "kernels/cuda/device_operators.h"
#include "kernels/cuda/device_support.h"
#include "kernels/operator.h"
#include "kernels/shape_check.h"
#include "kernels/simd/row_kernels.h"

namespace blockscope {

at::Tensor rms_norm_rows(const at::Tensor& x, const at::Tensor& weight, double eps,
                         bool weight_first) {
  if (const DeviceScope device{x}) {
    return device.run(rms_norm_rows_on, fallback::rms_norm_rows, x, weight, eps, weight_first);
  }
  check_rows("rms_norm_rows", "x", x);
  check_norm_weight("rms_norm_rows", weight, x);
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

SumAndNorm add_rms_norm_rows(const at::Tensor& x, const at::Tensor& y, const at::Tensor& weight,
                             double eps, bool weight_first) {
  if (const DeviceScope device{x}) {
    return device.run(add_rms_norm_rows_on, fallback::add_rms_norm_rows, x, y, weight, eps,
                      weight_first);
  }
  check_rows("add_rms_norm_rows", "x", x);
  check_rows_like("add_rms_norm_rows", "y", y, x);
  check_norm_weight("add_rms_norm_rows", weight, x);
  SumAndNorm result{at::empty(x.sizes(), x.options()), at::empty(x.sizes(), x.options())};
  const Rows left(x);
  const Rows right(y);
  const Element element = element_of(x);
  const RowKernels& kernels = best_row_kernels();
  auto* sum = static_cast<char*>(result.sum.data_ptr());
  auto* norm = static_cast<char*>(result.norm.data_ptr());
  for_rows(left, [&](int64_t i) {
    const auto place = left.place(i);
    char* row = sum + i * left.row_bytes();
    kernels.add(element, left.at(place), right.at(place), left.dim(), row);
    kernels.rms_norm(element, row, weight.const_data_ptr(), left.dim(), static_cast<float>(eps),
                     weight_first, norm + i * left.row_bytes());
  });
  return result;
}

namespace {

constexpr const char* kRotate = "rotate_rows";

/// The rotation of the rows of one tensor, after their norm.
class Rotation {
 public:
  Rotation(const HeadsToRotate& heads, const at::Tensor& cos, const at::Tensor& sin)
      : heads_(heads),
        out_(at::empty(heads.x.sizes(), heads.x.options())),
        element_(element_of(heads.x)),
        table_(element_of(cos)),
        turning_(cos.size(-1)),
        per_sequence_(cos.size(0) > 1),
        rows_(checked(heads, cos, sin)),
        cosines_(cos),
        sines_(sin) {}

  const at::Tensor& out() const { return out_; }
  const Rows& rows() const { return rows_; }

  void operator()(int64_t i) const {
    const RowKernels& kernels = best_row_kernels();
    const auto place = rows_.place(i);
    const std::array<int64_t, 3> entry{per_sequence_ ? place[0] : 0, 0, place[2]};
    const char* from = rows_.at(place);
    char* to = static_cast<char*>(out_.data_ptr()) + i * rows_.row_bytes();
    thread_local std::vector<char> normed;
    if (heads_.weight.defined()) {
      normed.resize(static_cast<size_t>(rows_.row_bytes()));
      kernels.rms_norm(element_, from, heads_.weight.const_data_ptr(), rows_.dim(),
                       static_cast<float>(heads_.eps), heads_.weight_first, normed.data());
      from = normed.data();
    }
    kernels.rotate(element_, from, table_, cosines_.at(entry), sines_.at(entry), turning_,
                   rows_.dim(), to);
  }

 private:
  static const at::Tensor& checked(const HeadsToRotate& heads, const at::Tensor& cos,
                                   const at::Tensor& sin) {
    check_rotation(kRotate, heads.x, cos, sin);
    if (heads.weight.defined()) check_norm_weight(kRotate, heads.weight, heads.x);
    return heads.x;
  }

  const HeadsToRotate& heads_;
  at::Tensor out_;
  Element element_;
  Element table_;
  int64_t turning_;
  bool per_sequence_;
  Rows rows_;
  Rows cosines_;
  Rows sines_;
};

}  // namespace

at::Tensor rotate_rows(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  return norm_rotate_rows({{x, {}, 0.0, false}}, cos, sin).front();
}

std::vector<at::Tensor> norm_rotate_rows(const std::vector<HeadsToRotate>& heads,
                                         const at::Tensor& cos, const at::Tensor& sin) {
  if (const DeviceScope device{cos}) {
    return device.run(norm_rotate_rows_on, fallback::norm_rotate_rows, heads, cos, sin);
  }
  std::vector<Rotation> rotations;
  std::vector<at::Tensor> out;
  int64_t rows = 0;
  int64_t elements = 0;
  for (const HeadsToRotate& one : heads) {
    rotations.emplace_back(one, cos, sin);
    out.push_back(rotations.back().out());
    rows += rotations.back().rows().count();
    elements += one.x.numel();
  }
  run_rows(rows, elements, [&](int64_t i) {
    size_t part = 0;
    for (; i >= rotations[part].rows().count(); ++part) i -= rotations[part].rows().count();
    rotations[part](i);
  });
  return out;
}

at::Tensor silu_multiply(const at::Tensor& gate, const at::Tensor& up) {
  if (const DeviceScope device{gate}) {
    return device.run(silu_multiply_on, fallback::silu_multiply, gate, up);
  }
  check_rows("silu_multiply", "gate", gate);
  check_rows_like("silu_multiply", "up", up, gate);
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

// --- on a device

namespace {

/// Size of the n-th dimension from the end (n from 1); 1 if it is missing.
int64_t size_at(const at::Tensor& x, int64_t n) { return n <= x.dim() ? x.size(-n) : 1; }

/// A tensor of up to 4 dimensions as [S, heads, tokens, W], without calling view operators.
DeviceRows as_heads(const at::Tensor& x) {
  const auto stride = [&](int64_t n) { return size_at(x, n) > 1 ? x.stride(-n) : 0; };
  return {x.const_data_ptr(), stride(4), stride(3), stride(2)};
}

/// Whether every row starts at a multiple of 16 bytes.
bool starts_aligned(const at::Tensor& x) {
  const DeviceRows rows = as_heads(x);
  const int64_t chunk = 16 / x.element_size();
  return reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 &&
         (rows.sequence % chunk | rows.head % chunk | rows.row % chunk) == 0;
}

/// Whether all parts of all rows, with lengths `widths`, are whole pieces of 16 bytes.
bool are_aligned(std::initializer_list<const at::Tensor*> tensors,
                 std::initializer_list<int64_t> widths) {
  const int64_t chunk = 16 / (*tensors.begin())->element_size();
  return std::all_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor* each) { return starts_aligned(*each); }) &&
         std::all_of(widths.begin(), widths.end(),
                     [&](int64_t width) { return width % chunk == 0; });
}

/// Fills in the members of a call with the numbers of rows.
template <class Call>
void set_rows(const char* op, Call& call, const at::Tensor& x) {
  call.type = device_float(x);
  call.dim = device_int(op, "row", x.size(-1));
  call.tokens = device_int(op, "rows", size_at(x, 2));
  call.heads = device_int(op, "rows", size_at(x, 3));
  call.rows = device_int(op, "rows", x.numel() / std::max<int64_t>(1, x.size(-1)));
}

NormCall norm_call(const char* op, const at::Tensor& x, const at::Tensor& weight, double eps,
                   bool weight_first, const at::Tensor& out) {
  NormCall call;
  set_rows(op, call, x);
  call.weight_first = weight_first;
  call.eps = static_cast<float>(eps);
  call.x = as_heads(x);
  call.weight = weight.const_data_ptr();
  call.out = out.mutable_data_ptr();
  return call;
}

at::Tensor empty_rows(const at::Tensor& x) { return at::empty(x.sizes(), x.options()); }

}  // namespace

at::Tensor rms_norm_rows_on(const DeviceQueue& queue, const at::Tensor& x, const at::Tensor& weight,
                            double eps, bool weight_first) {
  constexpr const char* kOp = "rms_norm_rows";
  check_rows(kOp, "x", x);
  check_norm_weight(kOp, weight, x);
  const at::Tensor out = empty_rows(x);
  NormCall call = norm_call(kOp, x, weight, eps, weight_first, out);
  call.aligned = are_aligned({&x, &weight, &out}, {call.dim});
  if (x.numel() > 0) queue.launch(queue.kernels.norm, call);
  return out;
}

SumAndNorm add_rms_norm_rows_on(const DeviceQueue& queue, const at::Tensor& x, const at::Tensor& y,
                                const at::Tensor& weight, double eps, bool weight_first) {
  constexpr const char* kOp = "add_rms_norm_rows";
  check_rows(kOp, "x", x);
  check_rows_like(kOp, "y", y, x);
  check_norm_weight(kOp, weight, x);
  const SumAndNorm result{empty_rows(x), empty_rows(x)};
  NormCall call = norm_call(kOp, x, weight, eps, weight_first, result.norm);
  call.y = as_heads(y);
  call.sum = result.sum.mutable_data_ptr();
  call.aligned = are_aligned({&x, &y, &weight, &result.sum, &result.norm}, {call.dim});
  if (x.numel() > 0) queue.launch(queue.kernels.norm, call);
  return result;
}

// One launch for two tensors of one head_dim.
std::vector<at::Tensor> norm_rotate_rows_on(const DeviceQueue& queue,
                                            const std::vector<HeadsToRotate>& heads,
                                            const at::Tensor& cos, const at::Tensor& sin) {
  constexpr const char* kOp = "rotate_rows";
  std::vector<at::Tensor> out;
  for (const HeadsToRotate& each : heads) {
    check_rotation(kOp, each.x, cos, sin);
    if (each.weight.defined()) check_norm_weight(kOp, each.weight, each.x);
    TORCH_CHECK(each.x.scalar_type() == heads.front().x.scalar_type(), kOp,
                ": x: expected one dtype, got ", heads.front().x.scalar_type(), " and ",
                each.x.scalar_type());
    out.push_back(empty_rows(each.x));
  }
  for (size_t first = 0; first < heads.size();) {
    const at::Tensor& x = heads[first].x;
    RotateCall call;
    call.type = device_float(x);
    call.float_table = cos.scalar_type() == at::kFloat;
    call.tokens = device_int(kOp, "rows", x.size(2));
    call.dim = device_int(kOp, "head_dim", x.size(3));
    call.turning = static_cast<int>(cos.size(-1));
    call.cos = as_heads(cos);
    call.sin = as_heads(sin);
    call.aligned = are_aligned({&x, &cos, &sin}, {call.turning / 2, call.dim});
    size_t parts = 0;
    for (; parts < kMaxTurnedTensors && first + parts < heads.size(); ++parts) {
      const HeadsToRotate& from = heads[first + parts];
      if (from.x.size(3) != call.dim) break;
      RotateCall::Part& part = call.parts[parts];
      part.heads = device_int(kOp, "heads", from.x.size(1));
      part.rows = device_int(kOp, "rows", from.x.numel() / std::max(1, call.dim));
      part.x = as_heads(from.x);
      part.out = out[first + parts].mutable_data_ptr();
      call.rows += part.rows;
      call.aligned = call.aligned && starts_aligned(from.x) && starts_aligned(out[first + parts]);
      if (!from.weight.defined()) continue;
      part.weight = from.weight.const_data_ptr();
      part.weight_first = from.weight_first;
      part.eps = static_cast<float>(from.eps);
      call.aligned = call.aligned && starts_aligned(from.weight);
    }
    if (call.rows > 0 && call.dim > 0) queue.launch(queue.kernels.rotate, call);
    first += parts;
  }
  return out;
}

at::Tensor silu_multiply_on(const DeviceQueue& queue, const at::Tensor& gate,
                            const at::Tensor& up) {
  constexpr const char* kOp = "silu_multiply";
  check_rows(kOp, "gate", gate);
  check_rows_like(kOp, "up", up, gate);
  const at::Tensor out = empty_rows(gate);
  GateCall call;
  set_rows(kOp, call, gate);
  call.gate = as_heads(gate);
  call.up = as_heads(up);
  call.out = out.mutable_data_ptr();
  call.aligned = are_aligned({&gate, &up, &out}, {call.dim});
  if (gate.numel() > 0) queue.launch(queue.kernels.gate, call);
  return out;
}

// A fallback's result (fallback_operators.h) may have the strides of its argument.
TORCH_LIBRARY_FRAGMENT(blockscope, m) {
  define_operator(
      m, "rms_norm_rows(Tensor x, Tensor weight, float eps, bool weight_first) -> Tensor",
      [](const at::Tensor& x, const at::Tensor& weight, double eps, bool weight_first) {
        return rms_norm_rows(x, weight, eps, weight_first).contiguous();
      },
      [](const at::Tensor& x, const at::Tensor&, double, bool) { return meta::same(x); });
  define_operator(
      m,
      "add_rms_norm_rows(Tensor x, Tensor y, Tensor weight, float eps, bool weight_first) -> "
      "(Tensor sum, Tensor norm)",
      [](const at::Tensor& x, const at::Tensor& y, const at::Tensor& weight, double eps,
         bool weight_first) {
        const SumAndNorm r = add_rms_norm_rows(x, y, weight, eps, weight_first);
        return std::tuple(r.sum.contiguous(), r.norm.contiguous());
      },
      [](const at::Tensor& x, const at::Tensor&, const at::Tensor&, double, bool) {
        return std::tuple(meta::same(x), meta::same(x));
      });
  define_operator(
      m,
      "norm_rotate_rows(Tensor q, Tensor k, Tensor? q_weight, Tensor? k_weight, Tensor cos, "
      "Tensor sin, float eps, bool weight_first) -> (Tensor q, Tensor k)",
      [](const at::Tensor& q, const at::Tensor& k, const OptionalTensor& q_weight,
         const OptionalTensor& k_weight, const at::Tensor& cos, const at::Tensor& sin, double eps,
         bool weight_first) {
        const std::vector<at::Tensor> r =
            norm_rotate_rows({{q, q_weight.value_or(at::Tensor()), eps, weight_first},
                              {k, k_weight.value_or(at::Tensor()), eps, weight_first}},
                             cos, sin);
        return std::tuple(r[0].contiguous(), r[1].contiguous());
      },
      [](const at::Tensor& q, const at::Tensor& k, const OptionalTensor&, const OptionalTensor&,
         const at::Tensor&, const at::Tensor&, double,
         bool) { return std::tuple(meta::same(q), meta::same(k)); });
  define_operator(
      m, "silu_multiply(Tensor gate, Tensor up) -> Tensor",
      [](const at::Tensor& gate, const at::Tensor& up) {
        return silu_multiply(gate, up).contiguous();
      },
      [](const at::Tensor& gate, const at::Tensor&) { return meta::same(gate); });
}

}  // namespace blockscope
