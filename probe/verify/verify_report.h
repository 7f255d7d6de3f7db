// What verify found, as text for people and as JSON and CSV for other tools.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "probe/verify/verify_result.h"

namespace blockscope {

/// What ran, for the heads of the outputs and for units.
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
  int64_t head_dim = 0;
  int64_t element_bytes = 0;  // of a stored key

  /// Bytes of key rows: K and V.
  double bytes(int64_t rows) const {
    return static_cast<double>(rows) * 2.0 * static_cast<double>(head_dim * element_bytes);
  }
  /// Bytes of ExternalReads::choice_rows: half as many each.
  double choice_bytes(int64_t rows) const { return bytes(rows) / 2.0; }
};

/// The reference beside the policy, free-running and under replay.
std::string detail_text(const VerifyResult& result, const VerifyFacts& facts);
/// One line per setting; empty without a sweep.
std::string sweep_text(const VerifyResult& result);
/// Three lines: what was saved, what it cost, how sure that is.
std::string verdict_text(const VerifyResult& result);

/// Everything, format "blockscope-verify" version 2.
std::string verify_json(const VerifyResult& result, const VerifyFacts& facts);
/// One line per setting, the reference first, with a header line.
std::string verify_csv(const VerifyResult& result, const VerifyFacts& facts);

/// "1.20x as fast [1.10, 1.31]"; below one as what it is: "slower: 2.27x the time [2.10, 2.40]".
/// Without the range when there is one measurement.
std::string speed_text(const Spread& speedup);

/// Relative L2 over the heads and steps that reused or read a set; nullopt: none did.
std::optional<double> error_where_approximated(const Fidelity& fidelity);

/// Milliseconds of attention per denoising or commit pass, over the repetitions.
Spread attention_per_pass(const FreeRun& run);

/// KV heads all of whose query heads reuse, over all layers.
int64_t whole_groups(const ReuseSetting& setting, const ReadShape& shape);

}  // namespace blockscope
