// What ran: for the reports of verify and bench.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "probe/run/run_flags.h"
#include "probe/run/run_prompts.h"
#include "probe/verify/external_reads.h"

namespace blockscope {

/// What ran, for the first lines of the outputs and for units.
struct VerifyFacts {
  std::string model;
  std::string digest;
  std::string dtype;
  std::string prompts;
  std::string decoding;  // one line: strategy, steps, lengths, seed
  std::string metric;    // of the scored prompts; "score" when there are several
  std::string instruction_set;
  int64_t shortest_prompt = 0;  // tokens
  int64_t longest_prompt = 0;
  int64_t threads = 0;
  int64_t batch_size = 0;
  int64_t repeats = 0;
  int64_t block_length = 0;
  int64_t head_dim = 0;       // the largest of a layer
  int64_t element_bytes = 0;  // of a stored key

  /// Bytes of key rows, K and V: `rows` or `rows_read` of these reads.
  double bytes(const ExternalReads& reads, const std::vector<int64_t>& rows) const {
    return reads.in_largest_rows(rows) * 2.0 * static_cast<double>(head_dim * element_bytes);
  }
  /// Bytes of ExternalReads::choice_rows: half as many each.
  double choice_bytes(const ExternalReads& reads) const {
    return bytes(reads, reads.choice_rows) / 2.0;
  }
};

/// The facts of this model and these prompts. The caller sets `decoding`, `batch_size`, `repeats`
/// and `block_length`.
VerifyFacts facts_of(const std::string& prompts_file, const LoadedModel& model,
                     const std::vector<RunPrompt>& prompts);

/// "greedy", "temperature 0.7".
std::string sampling_text(const SamplingOptions& sampling);

}  // namespace blockscope
