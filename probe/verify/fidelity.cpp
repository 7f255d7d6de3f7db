#include "probe/verify/fidelity.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "probe/model/device.h"
#include "probe/verify/agreement.h"

namespace blockscope {
namespace {

/// Per sequence and head, float64 [S, H].
struct HeadSums {
  at::Tensor absolute, squared, reference;
};

HeadSums head_sums(const at::Tensor& got, const at::Tensor& reference) {
  const at::Tensor exact = reference.to(at::kDouble);
  const at::Tensor error = got.to(at::kDouble) - exact;
  const std::vector<at::Tensor> sums = on_host(std::vector{
      error.abs().sum({-2, -1}), error.square().sum({-2, -1}), exact.square().sum({-2, -1})});
  return {sums[0].contiguous(), sums[1].contiguous(), sums[2].contiguous()};
}

/// [S, H], on the host: whether the head's output did not use this step's attention over the whole
/// prefix.
at::Tensor approximated_heads(const AttentionParts& used) {
  at::Tensor heads = at::zeros({used.external.size(0), used.external.size(1)}, at::kBool);
  if (used.reused.defined()) heads.logical_or_(used.reused);
  if (used.intervened.defined()) heads.logical_or_(used.intervened);
  if (used.selected.defined())
    heads.logical_or_(on_host(used.selected.ge(0).flatten(1).any(1, true)));
  return heads;
}

KlSummary summarise(int64_t step, std::vector<float>& values) {
  KlSummary summary;
  summary.step = step;
  summary.count = static_cast<int64_t>(values.size());
  if (values.empty()) return summary;
  double sum = 0.0;
  for (const float value : values) sum += static_cast<double>(value);
  summary.mean = sum / static_cast<double>(values.size());
  summary.p95 = quantile_of(values, 0.95);
  summary.max = static_cast<double>(values.back());  // quantile_of has sorted them
  return summary;
}

}  // namespace

double ErrorTotals::l1() const {
  return elements == 0 ? 0.0 : absolute / static_cast<double>(elements);
}

double ErrorTotals::relative_l2() const {
  return reference > 0.0 ? std::sqrt(squared / reference) : 0.0;
}

ErrorTotals& ErrorTotals::operator+=(const ErrorTotals& other) {
  absolute += other.absolute;
  squared += other.squared;
  reference += other.reference;
  elements += other.elements;
  return *this;
}

ErrorTotals sum_of(const std::vector<ErrorTotals>& totals) {
  ErrorTotals sum;
  for (const ErrorTotals& part : totals) sum += part;
  return sum;
}

FidelityMeter::FidelityMeter(const LayerSizes& shape) {
  const size_t heads = static_cast<size_t>(shape.num_layers * shape.num_heads);
  totals_.first_order.resize(heads);
  totals_.first_order_approximated.resize(heads);
  totals_.propagated.resize(heads);
  totals_.reads = ExternalReads(shape);
}

void FidelityMeter::on_attention(const AttentionView& view, const at::Tensor& exact_out) {
  PassReads reads;
  reads.add(view);
  reads.move_to(totals_.reads, view.context);
  const at::Tensor used = merged_output(view.used);
  const HeadSums first = head_sums(used, merged_output(*view.exact));
  const HeadSums whole = head_sums(used, exact_out);
  const int64_t heads = used.size(1);
  const int64_t elements = used.size(2) * used.size(3);
  const at::Tensor approximated = approximated_heads(view.used).contiguous();
  for (size_t s = 0; s < view.context.sequences.size(); ++s) {
    if (view.context.sequences[s].kind != PassKind::denoise) continue;
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t from = static_cast<int64_t>(s) * heads + h;
      const auto totals = [&](const HeadSums& sums) {
        return ErrorTotals{sums.absolute.const_data_ptr<double>()[from],
                           sums.squared.const_data_ptr<double>()[from],
                           sums.reference.const_data_ptr<double>()[from], elements};
      };
      const size_t at = static_cast<size_t>(view.input.layer * heads + h);
      totals_.first_order[at] += totals(first);
      totals_.propagated[at] += totals(whole);
      if (approximated.const_data_ptr<bool>()[from])
        totals_.first_order_approximated[at] += totals(first);
    }
  }
}

void FidelityMeter::on_logits(const PassContext& context, const std::vector<int64_t>& slots,
                              const at::Tensor& logits, const at::Tensor& exact_logits) {
  for (size_t i = 0; i < slots.size(); ++i) {
    const SequencePass& pass = context.sequences[static_cast<size_t>(slots[i])];
    const int64_t row = static_cast<int64_t>(i);
    // Double: the rounding of float32 logarithms would hide a KL of 1e-6.
    const at::Tensor exact = at::log_softmax(exact_logits.select(0, row).to(at::kDouble), -1);
    const at::Tensor policy = at::log_softmax(logits.select(0, row).to(at::kDouble), -1);
    // A token with p = 0 in the exact run adds nothing, whatever its p in the other run.
    const at::Tensor p_exact = exact.exp();
    const at::Tensor terms = at::where(p_exact > 0.0, p_exact * (exact - policy), 0.0);
    const at::Tensor kl = on_host(terms.sum(-1)).contiguous();
    const at::Tensor same = on_host(exact.argmax(-1).eq(policy.argmax(-1))).contiguous();
    for (size_t p = 0; p < pass.masked.size(); ++p) {
      if (!pass.masked[p]) continue;
      kl_[pass.step].push_back(static_cast<float>(kl.const_data_ptr<double>()[p]));
      totals_.same_top1 += same.const_data_ptr<bool>()[p] ? 1 : 0;
    }
  }
}

Fidelity FidelityMeter::result() {
  std::vector<float> all;
  totals_.kl_by_step.clear();
  for (auto& [step, values] : kl_) {
    all.insert(all.end(), values.begin(), values.end());
    totals_.kl_by_step.push_back(summarise(step, values));
  }
  totals_.kl = summarise(0, all);
  return totals_;
}

}  // namespace blockscope
