// The rule for every key of a config.json, in all families: it is read, it is in a table of keys
// that change nothing here (config_keys.cpp, and the family's own), or it is refused by name. A key
// that is null counts as absent.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "probe/checkpoint/json_object.h"

namespace blockscope {

struct Family;

/// A key that changes nothing here, or nothing with this value alone (JSON text).
struct NeutralKey {
  std::string_view key;
  std::string_view value{};
};

/// Throws CheckpointError for the keys of `object` that nobody has read and that neither the table
/// nor `own` knows, or knows with another value. Called when everything else of the object was
/// read.
void refuse_unread_keys(const JsonObject& object, std::span<const NeutralKey> own);
/// The same for an object inside a config.json, where only `own` counts.
void refuse_unread_inner_keys(const JsonObject& object, std::span<const NeutralKey> own);

/// Throws CheckpointError for keys with values that the runtime does not implement.
void refuse_unsupported(const JsonObject& file, const Family& family, std::int64_t num_layers);

}  // namespace blockscope
