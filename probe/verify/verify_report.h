// The results of verify: as text for people, and as JSON and CSV for other tools.
#pragma once

#include <optional>
#include <string>

#include "probe/verify/verify_facts.h"
#include "probe/verify/verify_result.h"

namespace blockscope {

/// The policy compared with the reference, free-running and under replay.
std::string detail_text(const VerifyResult& result, const VerifyFacts& facts);
/// One line per setting; empty without a sweep.
std::string sweep_text(const VerifyResult& result);
/// Three lines: what was saved, what it cost, how certain that is.
std::string verdict_text(const VerifyResult& result);

/// Everything, format "blockscope-verify" version 2.
std::string verify_json(const VerifyResult& result, const VerifyFacts& facts);
/// One line per setting, the reference first, with a header line.
std::string verify_csv(const VerifyResult& result, const VerifyFacts& facts);

/// "1.20x as fast [1.10, 1.31]"; if slower: "slower: 2.27x the time [2.10, 2.40]". Without the
/// range for a single measurement.
std::string speed_text(const Spread& speedup);

/// Relative L2 over the heads and steps that reused or read a set; nullopt: there are none.
std::optional<double> error_where_approximated(const Fidelity& fidelity);

/// Milliseconds of attention per denoising or commit pass, over the repetitions.
Spread attention_per_pass(const FreeRun& run);

/// The number of KV heads, over all layers, for which all query heads reuse.
int64_t whole_groups(const ReuseSetting& setting, const LayerSizes& shape);

}  // namespace blockscope
