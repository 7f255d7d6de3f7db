#include "probe/model/feed_forward.h"

#include <ATen/ATen.h>

#include <tuple>

namespace blockscope {

at::Tensor SwiGlu::operator()(const at::Tensor& x) const {
  return at::linear(at::silu(at::linear(x, gate)) * at::linear(x, up), down);
}

at::Tensor ExpertMixture::operator()(const at::Tensor& x) const {
  const at::Tensor rows = x.reshape({-1, x.size(-1)});
  const at::Tensor probability = at::softmax(at::linear(rows, router), -1, at::kFloat);
  auto [weight, chosen] = probability.topk(per_token, -1);  // [rows, per_token]
  if (normalise) weight = weight / weight.sum(-1, true);
  weight = weight.to(x.scalar_type());
  std::vector<std::vector<int64_t>> rows_of(experts.size()), places_of(experts.size());
  const at::Tensor choice = chosen.contiguous();
  const auto* expert = choice.const_data_ptr<int64_t>();
  for (int64_t row = 0; row < rows.size(0); ++row) {
    for (int64_t place = 0; place < per_token; ++place, ++expert) {
      rows_of[static_cast<size_t>(*expert)].push_back(row);
      places_of[static_cast<size_t>(*expert)].push_back(row * per_token + place);
    }
  }
  const at::Tensor flat_weight = weight.reshape({-1, 1});
  at::Tensor out = at::zeros_like(rows);
  for (size_t e = 0; e < experts.size(); ++e) {
    if (rows_of[e].empty()) continue;
    const at::Tensor index = at::tensor(rows_of[e], at::kLong);
    const at::Tensor scale = flat_weight.index_select(0, at::tensor(places_of[e], at::kLong));
    out.index_add_(0, index, experts[e](rows.index_select(0, index)) * scale);
  }
  return out.view(x.sizes());
}

}  // namespace blockscope
