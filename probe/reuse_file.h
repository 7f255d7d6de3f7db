// Reads the calibration file (`reuse.json`): which query heads may reuse their external attention.
// Format: docs/reuse.schema.json. A file made for another model is refused, naming the field.
#pragma once

#include <string>
#include <vector>

#include "probe/checkpoint/model_config.h"

namespace blockscope {

struct ReuseFile {
  std::vector<std::vector<bool>> reuse;  // [num_layers][num_heads]
};

/// Throws CheckpointError: unreadable, malformed, another version, or made for another model
/// (layers, heads or checkpoint digest).
ReuseFile read_reuse_file(const std::string& path, const ModelConfig& config,
                          const std::string& checkpoint_digest);

}  // namespace blockscope
