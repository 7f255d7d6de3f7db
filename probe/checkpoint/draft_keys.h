// Keys of drafts that newer checkpoints have: factors, the parts of a DFlash 2 draft, sliding
// windows. dflash_family.cpp reads the others.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "probe/checkpoint/draft_config.h"
#include "probe/checkpoint/family_table.h"

namespace blockscope {

inline constexpr std::string_view kDflash2Class = "DFlash2DraftModel";

/// A key that may be in either object, or in both with the same value.
std::optional<std::int64_t> agreed_integer(const JsonObject& file, const JsonObject& keys,
                                           const std::string& key, std::int64_t low,
                                           std::int64_t high);
/// The factors of a block's embeddings and of its logits, which change nothing by default.
void read_factors(const JsonObject& file, const JsonObject& keys, DraftConfig& draft);
/// The keys of a DFlash 2 draft, which another draft must not have.
std::optional<Dflash2Config> read_second(const JsonObject& file, const JsonObject& keys,
                                         const ModelConfig& model, std::int64_t block_size);
/// The layers with a window, and those whose rows see the block only up to themselves. Call it
/// after the RoPE was read.
void read_draft_windows(const ConfigFile& file, ModelConfig& config);
/// Adds the values of all these keys to the resolved ones. Drafts without them keep the digest that
/// earlier versions gave them.
void record_draft_keys(ModelConfig& config);

}  // namespace blockscope
