// A checkpoint whose weights have an adapter's sums.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "probe/checkpoint/checkpoint.h"

namespace blockscope {

/// The names of the files that export_merged writes for a base in this folder: model.safetensors,
/// and copies of configuration, tokenizer, template and code.
std::vector<std::string> merged_files(const std::filesystem::path& base);

/// Writes a base with its adapter (Checkpoint::adapt) as a checkpoint with the base's dtypes.
void export_merged(const Checkpoint& base, const std::filesystem::path& folder);

}  // namespace blockscope
