// How two runs over the same prompts differ: their tokens, the first step that differs, their
// scores, and how certain a difference in accuracy is. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "probe/decode/decoder.h"

namespace blockscope {

/// Tokens up to and including the first stop token; without one, all of them.
size_t answer_length(const std::vector<int64_t>& tokens, const std::vector<int64_t>& stop_ids);

/// Generated tokens, compared up to and including the first stop token of either run: what follows
/// it is filler. A position that only one run reached counts as different.
struct TokenAgreement {
  int64_t positions = 0;
  int64_t equal = 0;
  int64_t sequences = 0;
  int64_t identical = 0;  // sequences in which every compared position is equal

  double share_equal() const;
  double share_identical() const;
};
void compare_tokens(const std::vector<int64_t>& a, const std::vector<int64_t>& b,
                    const std::vector<int64_t>& stop_ids, TokenAgreement& agreement);

/// The first denoising step of a sequence at which the two runs transfer other positions or tokens.
struct Divergence {
  int64_t step = 0;      // over the whole sequence, from 1
  int64_t position = 0;  // the lowest position that differs, from 0 after the prompt
};
/// nullopt: the same tokens at the same steps. A step after the end of the shorter run differs.
std::optional<Divergence> first_divergence(const std::vector<ReplayStep>& a,
                                           const std::vector<ReplayStep>& b, int64_t prompt_length);

/// The same prompts scored twice. Standard errors are those of a mean over the scored prompts.
struct PairedScores {
  int64_t count = 0;  // prompts with a score in both
  int64_t better = 0;
  int64_t worse = 0;  // the second run scored lower
  double mean_a = 0.0;
  double mean_b = 0.0;
  double error_a = 0.0;
  double error_b = 0.0;
  double error_difference = 0.0;  // of mean_b - mean_a, from the per-prompt differences
  /// Two-sided exact sign test: the probability that chance splits `better` and `worse` at least
  /// this unevenly; 1 if no prompt differs.
  double sign_test = 1.0;

  bool within_noise() const { return sign_test > 0.05; }
  /// If no prompt differs: the upper 95 % confidence limit of the true share of changed prompts
  /// (the rule of three).
  double rule_of_three() const { return count == 0 ? 1.0 : 3.0 / static_cast<double>(count); }
};
/// NaN: not scored.
PairedScores paired_scores(const std::vector<double>& a, const std::vector<double>& b);

/// Median, smallest and largest of repeated measurements; zeros for none.
struct Spread {
  double median = 0.0;
  double low = 0.0;
  double high = 0.0;
};
Spread spread_of(std::vector<double> values);

/// The value that a share `quantile` of the values does not exceed (linear between neighbours, as
/// numpy.quantile); 0 for none. Sorts the values.
double quantile_of(std::vector<float>& values, double quantile);

}  // namespace blockscope
