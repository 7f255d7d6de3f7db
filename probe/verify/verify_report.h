// What verify found, as text for people and as JSON and CSV for other tools.
#pragma once

#include <optional>
#include <string>

#include "probe/verify/verify_facts.h"
#include "probe/verify/verify_result.h"

namespace blockscope {

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
