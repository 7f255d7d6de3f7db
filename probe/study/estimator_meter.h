// How good each method's choice of keys would be for a run. Every policy chooses at every step of
// an exact run, from the exact run's own queries. So all policies are measured on the same rows,
// and none changes what the next one sees. (`--shadow` measures one policy along its own run.)
//
// For a KV head, S is the method's set of k keys out of N > k. S*_token and S*_block are the exact
// top-k sets of a token and of the block at the same step.
//   est_acc   |S n S*_token| / k, mean over the block's tokens (MAGE, eq. 1);
//   recall    |S n S*_block| / k;
//   covered   exp(L_S - L_out): share of the prefix's probability on S, mean over queries;
//   error     of the attention output, external and internal merged, with any residual: relative
//             L2, and mean |e| per element (FlashBlock, Table 3).
// Rows where a policy reads its whole prefix (MAGE's first step) are left out.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "probe/decode/decode_observer.h"
#include "probe/policies/policy_table.h"
#include "probe/run/run_flags.h"
#include "probe/study/method_runs.h"
#include "probe/verify/external_reads.h"

namespace blockscope {

/// Sums of all quantities over some rows.
struct EstimateSums {
  enum Quantity : std::uint8_t { kEstAcc, kRecall, kCovered, kSquared, kReference, kAbsolute };
  static constexpr size_t kQuantities = 6;
  std::array<double, kQuantities> sum{};
  std::array<int64_t, kQuantities> count{};

  void add(Quantity quantity, double value, int64_t terms = 1);
  EstimateSums& operator+=(const EstimateSums& other);
  double mean(Quantity quantity) const;  // NaN without terms
  double relative_l2() const;            // NaN without terms
};

/// One method at one k.
struct MethodEstimate {
  std::vector<EstimateSums> by_step;  // [t - 1], all layers and heads
  std::vector<EstimateSums> by_head;  // [L * H], t > 1; a KV head's: at its first query head
  EstimateSums later() const;         // t > 1, everything
};

struct EstimateResult {
  std::vector<std::string> methods;
  std::vector<int64_t> set_sizes;
  std::vector<std::vector<MethodEstimate>> estimates;  // [method][k]
  std::vector<std::vector<int64_t>> unions;  // [k]: |union of the tokens' sets| at t = 1, one for
                                             // each block, layer and KV head

  EstimateResult& operator+=(const EstimateResult& other);  // of the same methods and sizes
};
nlohmann::json to_json(const EstimateResult& result);
EstimateResult estimates_from_json(const nlohmann::json& json);

struct EstimatorOptions {
  std::vector<int64_t> set_sizes;  // k, ascending
  std::vector<int64_t> pages;      // Quest's keys per page
  bool all_methods = true;         // false: only Quest, and only at t = 1
  int64_t exact_layers = 0;
  uint64_t policy_seed = 0;
  std::vector<StudyMethod> named;  // further policies, one for each k or with k 0
};

/// Watches an exact run of one sequence at a time.
class EstimatorMeter : public DecodeObserver {
 public:
  EstimatorMeter(const EstimatorOptions& options, const LoadedModel& model, int64_t block_steps);
  void on_attention(const AttentionView& view) override;
  void on_remove(int64_t slot) override;

  const EstimateResult& result() const { return result_; }

 private:
  struct Method {
    std::string label;
    int64_t token_page = 0;                                 // Quest per token: keys per page
    std::vector<std::unique_ptr<AttentionPolicy>> by_size;  // [k], for all other methods
  };
  struct Exact;
  void add_method(std::string label, PolicyOptions policy, const LoadedModel& model);
  void add_named(const LoadedModel& model);
  void measure_policy(const AttentionView& view, const Exact& exact, size_t method, size_t size);
  void measure_tokens(const AttentionView& view, const Exact& exact, size_t method);
  void add(size_t method, size_t size, const AttentionView& view, int64_t head,
           EstimateSums::Quantity quantity, double sum, int64_t terms);

  EstimatorOptions options_;
  LayerSizes shape_;
  std::vector<Method> methods_;
  EstimateResult result_;
};

}  // namespace blockscope
