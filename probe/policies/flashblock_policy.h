// FlashBlock (arXiv 2602.05305, section 4.2) reuses the external pair of an earlier step while few
// tokens are decided.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "decode_record/interchange/reuse_file.h"
#include "decode_record/schema/reuse_masks.h"
#include "probe/policies/attention_policy.h"

namespace blockscope {

struct FlashBlockOptions {
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  ReuseRule rule;
  ReuseMasks reuse{};                 // [ranges][num_layers][num_heads]
  std::optional<ErrorBound> bound{};  // in place of the rule's tau and count
  double sure = 0.0;                  // a step with a smaller SequencePass::sure_left reads all
};

/// The error bound of `bound=`, from the row errors of the file. Throws CalibrationError if the
/// file has none; `path` names it.
ErrorBound error_bound(double bound, const ReuseFile& file, const std::string& path);

/// A head that reuses keeps its cached pair; one that reads the prefix replaces it. Each head so
/// has its own last read.
std::unique_ptr<AttentionPolicy> make_flashblock_policy(FlashBlockOptions options);

}  // namespace blockscope
