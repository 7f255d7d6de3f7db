#include "probe/decode/true_pass.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "kernels/ops.h"
#include "probe/model/device.h"

namespace blockscope {
namespace {

/// Mean over `positions` of the cosine of a and b, [heads, L, D] each, heads concatenated.
float mean_cosine(const at::Tensor& a, const at::Tensor& b, const std::vector<int64_t>& positions) {
  if (positions.empty()) return std::numeric_limits<float>::quiet_NaN();
  const at::Tensor index = index_on(positions, a.device());
  const auto flat = [&](const at::Tensor& rows) {
    return rows.index_select(1, index).transpose(0, 1).flatten(1).to(at::kDouble);  // [R, heads D]
  };
  const at::Tensor x = flat(a);
  const at::Tensor y = flat(b);
  const at::Tensor norm = x.norm(2, {-1}) * y.norm(2, {-1});
  return ((x * y).sum(-1) / norm).mean().item<float>();
}

/// Positions of [0, length) that are not in `written`, which is ascending.
std::vector<int64_t> kept(const std::vector<int64_t>& written, int64_t length) {
  std::vector<int64_t> result;
  for (int64_t p = 0; p < length; ++p) {
    if (!std::binary_search(written.begin(), written.end(), p)) result.push_back(p);
  }
  return result;
}

class TruePass : public ForwardSeams {
 public:
  TruePass(const CanvasKeys& keys, const CanvasSeams& seams) : keys_(keys), seams_(seams) {}

  at::Tensor attention(const AttentionInput& input) override {
    const int64_t length = input.k.size(2);
    at::Tensor out = prefill_attention(input.q, input.k, input.v, at::full({1}, length, at::kLong),
                                       length, input.scale);
    const LayerWork& work = seams_.work()[static_cast<size_t>(input.layer)];
    Staleness& layer = result_.emplace_back();
    layer.key = mean_cosine(keys_.ordered_key(input.layer), input.k[0], kept(work.keys, length));
    layer.value =
        mean_cosine(keys_.ordered_value(input.layer), input.v[0], kept(work.values, length));
    const CanvasSeams::BlockOutput& block = seams_.block_output(input.layer);
    std::vector<int64_t> rows(block.positions.size());
    std::iota(rows.begin(), rows.end(), int64_t{0});
    layer.attention = std::numeric_limits<float>::quiet_NaN();
    if (!rows.empty()) {
      const at::Tensor same = out[0].index_select(1, index_on(block.positions, out.device()));
      layer.attention = mean_cosine(block.out[0], same, rows);
    }
    return out;
  }

  std::vector<Staleness> take() { return std::move(result_); }

 private:
  const CanvasKeys& keys_;
  const CanvasSeams& seams_;
  std::vector<Staleness> result_;
};

}  // namespace

std::vector<Staleness> measure_staleness(const BlockDiffusionModel& model,
                                         const std::vector<int64_t>& tokens, const CanvasKeys& keys,
                                         const CanvasSeams& seams) {
  TruePass pass(keys, seams);
  const at::Tensor positions = at::arange(static_cast<int64_t>(tokens.size()), at::kLong);
  (void)model.forward(at::tensor(tokens, at::kLong).unsqueeze(0), positions.unsqueeze(0), pass);
  return pass.take();
}

}  // namespace blockscope
