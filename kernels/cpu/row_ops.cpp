#include "kernels/row_ops.h"

#include <ATen/ATen.h>

#include <array>

#include "kernels/cpu/cpu_support.h"
#include "kernels/cuda/device_operators.h"
#include "kernels/cuda/row_ops_device.h"
#include "kernels/shape_check.h"
#include "kernels/simd/row_kernels.h"

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

/// task(i) for `rows` rows that have so many elements in all.
template <class Task>
void run_rows(int64_t rows, int64_t elements, const Task& task) {
  const auto run = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) task(i);
  };
  if (runs_serially() || elements <= kGrain) return run(0, rows);
  const int64_t dim = std::max<int64_t>(1, elements / std::max<int64_t>(1, rows));
  at::parallel_for(0, rows, std::max<int64_t>(1, kGrain / dim), run);
}

template <class Task>
void for_rows(const Rows& rows, const Task& task) {
  run_rows(rows.count(), rows.count() * rows.dim(), task);
}

}  // namespace

at::Tensor rms_norm_rows(const at::Tensor& x, const at::Tensor& weight, double eps,
                         bool weight_first) {
  if (const DeviceScope device{x}) {
    return device.has_kernels() ? rms_norm_rows_on(device.queue(), x, weight, eps, weight_first)
                                : fallback::rms_norm_rows(x, weight, eps, weight_first);
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
    return device.has_kernels()
               ? add_rms_norm_rows_on(device.queue(), x, y, weight, eps, weight_first)
               : fallback::add_rms_norm_rows(x, y, weight, eps, weight_first);
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

/// What turns the rows of one tensor, after their norm.
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
    return device.has_kernels() ? norm_rotate_rows_on(device.queue(), heads, cos, sin)
                                : fallback::norm_rotate_rows(heads, cos, sin);
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
    return device.has_kernels() ? silu_multiply_on(device.queue(), gate, up)
                                : fallback::silu_multiply(gate, up);
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

namespace {

/// On a device other than the CPU; one copy back.
BestTokens best_tokens_by_chain(const at::Tensor& logits) {
  const at::Tensor rows = logits.to(at::kFloat);
  const at::Tensor probability = (rows.amax(-1) - at::logsumexp(rows, {-1})).exp();
  // Token ids are exact in float64.
  const at::Tensor both =
      at::stack({rows.argmax(-1).to(at::kDouble), probability.to(at::kDouble)}).to(at::kCPU);
  BestTokens result;
  for (int64_t i = 0; i < rows.size(0); ++i) {
    const double* data = both.const_data_ptr<double>() + i;
    result.token.push_back(static_cast<int64_t>(data[0]));
    result.probability.push_back(static_cast<float>(data[rows.size(0)]));
  }
  return result;
}

TokenOdds token_odds_by_chain(const at::Tensor& logits, const std::vector<int64_t>& tokens) {
  const at::Tensor rows = logits.to(at::kFloat);
  const at::Tensor column = at::tensor(tokens, at::kLong).to(rows.device()).unsqueeze(-1);
  const at::Tensor log_p = rows.log_softmax(-1);
  const at::Tensor p = log_p.exp();
  const at::Tensor terms = at::where(p == 0.0, 0.0, p * log_p);  // of -infinity: 0, not NaN
  // A rank is exact in float64.
  const at::Tensor all = at::stack({(rows > rows.gather(-1, column)).sum(-1).to(at::kDouble),
                                    p.gather(-1, column).squeeze(-1).to(at::kDouble),
                                    terms.sum(-1).neg().to(at::kDouble)})
                             .to(at::kCPU);
  TokenOdds result;
  for (int64_t i = 0; i < rows.size(0); ++i) {
    const double* data = all.const_data_ptr<double>() + i;
    result.rank.push_back(static_cast<int64_t>(data[0]));
    result.probability.push_back(static_cast<float>(data[rows.size(0)]));
    result.entropy.push_back(static_cast<float>(data[2 * rows.size(0)]));
  }
  return result;
}

}  // namespace

BestTokens best_tokens(const at::Tensor& logits) {
  if (logits.defined() && !logits.is_cpu()) return best_tokens_by_chain(logits);
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

TokenOdds token_odds(const at::Tensor& logits, const std::vector<int64_t>& tokens) {
  const bool on_cpu = !logits.defined() || logits.is_cpu();
  if (on_cpu) check_rows("token_odds", "logits", logits);
  check_shape("token_odds", "logits", logits, {std::ssize(tokens), -1});
  for (const int64_t token : tokens) {
    TORCH_CHECK(token >= 0 && token < logits.size(1), "token_odds: tokens: expected ids below ",
                logits.size(1), ", got ", token);
  }
  if (!on_cpu) return token_odds_by_chain(logits, tokens);
  const Rows rows(logits);
  TokenOdds result;
  result.rank.resize(tokens.size());
  result.probability.resize(tokens.size());
  result.entropy.resize(tokens.size());
  const Element element = element_of(logits);
  for_rows(rows, [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    best_row_kernels().odds(element, rows.at(rows.place(i)), rows.dim(), tokens[at],
                            &result.rank[at], &result.probability[at], &result.entropy[at]);
  });
  return result;
}

}  // namespace blockscope
