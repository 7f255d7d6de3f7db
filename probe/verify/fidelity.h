// How much a policy changes the model. The policy and exact attention replay the same run step by
// step; compared are predictions, attention outputs and the keys really read.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "probe/verify/external_reads.h"
#include "probe/verify/lockstep.h"

namespace blockscope {

/// KL(p_exact || p_policy) in nats, for the softmax of the logits at temperature 1, over positions
/// that are masked in both inputs (under replay: the same positions).
struct KlSummary {
  int64_t step = 0;   // denoising step inside the block, from 1; 0: all of them
  int64_t count = 0;  // masked positions, summed over steps and sequences
  double mean = 0.0;
  double p95 = 0.0;
  double max = 0.0;
};

/// Sums over positions and channels of the merged attention output: e = policy - reference.
struct ErrorTotals {
  double absolute = 0.0;   // sum |e|
  double squared = 0.0;    // sum e^2
  double reference = 0.0;  // sum reference^2
  int64_t elements = 0;

  double l1() const;           // mean |e| per element
  double relative_l2() const;  // sqrt(sum e^2 / sum reference^2)
  ErrorTotals& operator+=(const ErrorTotals& other);
};

struct Fidelity {
  KlSummary kl;
  std::vector<KlSummary> kl_by_step;
  int64_t same_top1 = 0;  // masked positions whose most probable token is the same

  // [L * H] each. First-order: the reference is exact attention of the same queries (what --shadow
  // computes), so only this layer's approximation counts.
  std::vector<ErrorTotals> first_order;  // over all denoising steps
  // First-order, over the steps at which the head reused or read a set instead of the whole prefix.
  std::vector<ErrorTotals> first_order_approximated;
  // Propagated: the reference is the exact run's output at the same step, so changes by earlier
  // layers and steps count too.
  std::vector<ErrorTotals> propagated;  // over all denoising steps

  ExternalReads reads;  // what the runtime really read
};

/// The totals of all layers and heads.
ErrorTotals sum_of(const std::vector<ErrorTotals>& totals);

/// Collects a Fidelity over any number of replays. Stores 4 bytes per masked position and step.
class FidelityMeter : public LockstepVisitor {
 public:
  explicit FidelityMeter(const LayerSizes& shape);
  void on_unseen_commit(const PassContext& context) override {
    PassReads().move_to(totals_.reads, context);
  }

  void on_attention(const AttentionView& view, const at::Tensor& exact_out) override;
  void on_logits(const PassContext& context, const std::vector<int64_t>& slots,
                 const at::Tensor& logits, const at::Tensor& exact_logits) override;

  /// The result of all replays so far.
  Fidelity result();

 private:
  Fidelity totals_;
  std::map<int64_t, std::vector<float>> kl_;  // by denoising step inside the block
};

}  // namespace blockscope
