#include "probe/verify/draft_ties.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "probe/policies/exact_policy.h"

namespace blockscope {
namespace {

constexpr double kRoundings = 2.0;  // each of the two logits may move by one rounding

/// Keeps the logits of the last decoding pass.
class LastLogits : public DecodeObserver {
 public:
  bool looks_inside(const PassContext& /*context*/) const override { return false; }
  bool wants_every_prediction() const override { return false; }
  bool wants_logits() const override { return true; }
  void on_logits(const PassContext& /*context*/, const std::vector<int64_t>& /*slots*/,
                 const at::Tensor& logits) override {
    keep(logits);
  }
  void on_masked_logits(const PassContext& /*context*/, const std::vector<int64_t>& /*slots*/,
                        const std::vector<std::vector<bool>>& /*predicted*/,
                        const at::Tensor& logits) override {
    keep(logits);
  }

  int64_t passes = 0;
  at::Tensor last;  // [V] double, on the host

 private:
  void keep(const at::Tensor& logits) {
    last = logits.reshape({-1, logits.size(-1)})[-1].to(at::kCPU, at::kDouble);
    ++passes;
  }
};

/// [V]: the logits that decided token number `count` (from 1) of the request.
at::Tensor logits_of(const LoadedModel& target, const DecodeOptions& options,
                     const DecodeRequest& request, int64_t count,
                     const std::function<bool()>& interrupted) {
  LastLogits watch;
  DecodeCallbacks callbacks;
  callbacks.observer = &watch;
  callbacks.interrupted = [&] { return watch.passes >= count || (interrupted && interrupted()); };
  const auto policy = make_exact_policy();
  int64_t next_pass = 0;
  decode_batch(*target.model, *policy, options, {request}, next_pass, callbacks);
  return watch.passes == count ? watch.last : at::Tensor();
}

}  // namespace

TieFinding find_tie(const LoadedModel& target, const DecodeOptions& options,
                    const DecodeRequest& request, const std::vector<int64_t>& alone,
                    const TokenDifference& difference, const std::function<bool()>& interrupted) {
  const at::Tensor own = logits_of(target, options, request, difference.position + 1, interrupted);
  DecodeRequest again = request;  // of the same length: some rotary embeddings depend on it
  again.prompt.insert(again.prompt.end(), alone.begin(), alone.begin() + difference.position);
  again.gen_length -= difference.position;
  const at::Tensor after_prefill = logits_of(target, options, again, 1, interrupted);
  TieFinding finding;
  if (!own.defined() || !after_prefill.defined()) {  // interrupted
    finding.gap = std::numeric_limits<double>::quiet_NaN();
    return finding;
  }
  const auto gap = [&](const at::Tensor& logits) {
    return (logits[difference.alone_token] - logits[difference.drafted_token]).item<double>();
  };
  finding.gap = gap(own);
  finding.gap_again = gap(after_prefill);
  finding.rounding = (own - after_prefill).abs().max().item<double>();
  const double digit = target.dtype == at::kBFloat16 ? 0x1p-7
                       : target.dtype == at::kHalf   ? 0x1p-10
                                                     : 0x1p-23;
  finding.allowed = std::max(kRoundings * finding.rounding, digit * own.abs().max().item<double>());
  return finding;
}

}  // namespace blockscope
