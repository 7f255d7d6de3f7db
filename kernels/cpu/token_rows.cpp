// best_tokens and token_odds: the values that a decoder needs from the rows of its logits.
#include <ATen/ATen.h>

#include "kernels/cpu/rows.h"
#include "kernels/row_ops.h"
#include "kernels/shape_check.h"
#include "kernels/simd/row_kernels.h"

namespace blockscope {
namespace {

/// Computes on a device other than the CPU, with one copy back.
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
  const at::Tensor terms = at::where(p == 0.0, 0.0, p * log_p);  // 0 for -infinity, not NaN
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
