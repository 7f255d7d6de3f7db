// The rule for every key of a config.json, in all families. A key is read, or it is in a table of
// keys that change nothing here (config_keys.cpp, and the family's own table), or it is refused by
// name. A null key counts as absent.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "probe/checkpoint/json_object.h"

namespace blockscope {

struct Family;

/// A key that changes nothing here. If `value` (JSON text) is not empty, only this value changes
/// nothing.
struct NeutralKey {
  std::string_view key;
  std::string_view value{};
};

/// Throws CheckpointError for keys of `object` that nobody has read and that are neither in the
/// table nor in `own`, or are there with another value. Call it after everything else of the object
/// was read.
void refuse_unread_keys(const JsonObject& object, std::span<const NeutralKey> own);
/// The same for an object inside a config.json, with `own` as the only table.
void refuse_unread_inner_keys(const JsonObject& object, std::span<const NeutralKey> own);

/// Throws CheckpointError for keys with values that the runtime does not implement.
void refuse_unsupported(const JsonObject& file, const Family& family, std::int64_t num_layers);

}  // namespace blockscope
