// The rule for every key of a config.json, in all families: it is read, it is in the table of keys
// that change nothing here, or it is refused by name. A key that is null counts as absent.
#pragma once

#include <string_view>

#include "probe/checkpoint/json_object.h"

namespace blockscope {

/// Throws CheckpointError for the keys of `object` that nobody has read and that the table does not
/// know, or knows with another value. Called when everything else of the object was read. `place`:
/// the model_type of the family, "speculators" for the outer object of a draft in that layout, or
/// "dflash_config".
void refuse_unread_keys(const JsonObject& object, std::string_view place);

}  // namespace blockscope
