// PC-Sampler: confidence corrected for a token's frequency, and weighted towards the block's start.
// Source: PC-Sampler, arXiv 2508.13021; NEUIR/PC-Sampler `src/generate.py:pc_sampler_function`, in
// float32 like the original.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace blockscope {

/// How often each token occurs in a corpus.
struct TokenFrequencies {
  std::vector<float> share;  // [V]: count / tokens of the corpus; 1 / tokens where the count is 0
  std::string digest;        // SHA-256 of the file it was read from
};

/// exp(-lambda * i) * min(-p * log(f[x] + 1e-9), alpha) for every position i of the block. `token`
/// x and its probability `confidence` p are [B]. The score is 0 if x is negative (no prediction).
std::vector<float> pc_scores(const std::vector<int64_t>& token,
                             const std::vector<float>& confidence, const std::vector<float>& share,
                             double lambda, double alpha);

}  // namespace blockscope
