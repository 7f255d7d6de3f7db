#include "probe/decode/true_pass.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "kernels/ops.h"
#include "probe/model/device.h"

namespace blockscope {
namespace {

/// Cosines [R] float64 of the rows of a and b, [heads, R, D] each, heads concatenated.
at::Tensor cosines(const at::Tensor& a, const at::Tensor& b) {
  const auto flat = [](const at::Tensor& rows) {
    return rows.transpose(0, 1).flatten(1).to(at::kDouble);  // [R, heads D]
  };
  const at::Tensor x = flat(a);
  const at::Tensor y = flat(b);
  const at::Tensor norm = x.norm(2, {-1}) * y.norm(2, {-1});
  return (x * y).sum(-1) / norm;
}

/// The mean cosine over `positions`: a float32 on the tensors' device, without waiting for it.
at::Tensor mean_cosine(const at::Tensor& a, const at::Tensor& b,
                       const std::vector<int64_t>& positions) {
  if (positions.empty()) {
    return at::full({}, std::numeric_limits<double>::quiet_NaN(), a.options().dtype(at::kFloat));
  }
  const at::Tensor index = index_on(positions, a.device());
  return cosines(a.index_select(1, index), b.index_select(1, index)).mean().to(at::kFloat);
}

/// The mean cosine over the rows that are true in `present` [R] bool.
at::Tensor mean_cosine_where(const at::Tensor& a, const at::Tensor& b, const at::Tensor& present) {
  const at::Tensor theirs = cosines(a, b).masked_fill(present.logical_not(), 0.0);
  return (theirs.sum() / present.sum()).to(at::kFloat);  // 0 / 0 of none is NaN
}

/// The positions of [0, length) that are not in `written`, which is ascending.
std::vector<int64_t> kept(const std::vector<int64_t>& written, int64_t length) {
  std::vector<int64_t> result;
  for (int64_t p = 0; p < length; ++p) {
    if (!std::binary_search(written.begin(), written.end(), p)) result.push_back(p);
  }
  return result;
}

/// The same if a device chose some of the written positions: [length] bool, on that device.
at::Tensor kept(const std::vector<int64_t>& written, const at::Tensor& chosen, int64_t length) {
  const at::Tensor stays =
      at::ones({length}, chosen.options().dtype(at::kBool)).index_fill_(0, chosen, 0);
  return written.empty() ? stays : stays.index_fill_(0, index_on(written, chosen.device()), 0);
}

class TruePass : public ForwardSeams {
 public:
  TruePass(const CanvasKeys& keys, const CanvasSeams& seams) : keys_(keys), seams_(seams) {}

  at::Tensor attention(const AttentionInput& input) override {
    const int64_t length = input.k.size(2);
    at::Tensor out = prefill_attention(input.q, input.k, input.v, at::full({1}, length, at::kLong),
                                       length, input.scale);
    const LayerWork& work = seams_.work()[static_cast<size_t>(input.layer)];
    const at::Tensor stored = keys_.ordered_key(input.layer);
    key_.push_back(work.chosen.defined()
                       ? mean_cosine_where(stored, input.k[0], kept(work.keys, work.chosen, length))
                       : mean_cosine(stored, input.k[0], kept(work.keys, length)));
    value_.push_back(
        mean_cosine(keys_.ordered_value(input.layer), input.v[0], kept(work.values, length)));
    attention_.push_back(of_block(seams_.block_output(input.layer), out[0]));
    return out;
  }

  Staleness take() const { return {at::stack(key_), at::stack(value_), at::stack(attention_)}; }

 private:
  static at::Tensor of_block(const CanvasSeams::BlockOutput& block, const at::Tensor& out) {
    if (block.positions.empty()) return mean_cosine(out, out, {});
    const at::Tensor same = out.index_select(1, index_on(block.positions, out.device()));
    return block.present.defined() ? mean_cosine_where(block.out[0], same, block.present)
                                   : cosines(block.out[0], same).mean().to(at::kFloat);
  }

  const CanvasKeys& keys_;
  const CanvasSeams& seams_;
  std::vector<at::Tensor> key_, value_, attention_;  // of each layer, a float32
};

}  // namespace

Staleness measure_staleness(const BlockDiffusionModel& model, const std::vector<int64_t>& tokens,
                            const CanvasKeys& keys, const CanvasSeams& seams) {
  TruePass pass(keys, seams);
  const at::Tensor positions = at::arange(static_cast<int64_t>(tokens.size()), at::kLong);
  (void)model.forward(at::tensor(tokens, at::kLong).unsqueeze(0), positions.unsqueeze(0), pass);
  return pass.take();
}

}  // namespace blockscope
