// What the Selection panel remembers, and what it made once of the values it shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "viewer/model/step_keys.h"
#include "viewer/panels/token_lines.h"

namespace blockscope {

struct SelectionState {
  KeysAgainst against = KeysAgainst::read;
  int k = 0;                       ///< of KeysAgainst::first; 0: all
  int jump = 0;                    ///< 0: to any mark; 1: hits, 2: misses, 3: extra
  std::optional<std::int32_t> at;  ///< the position jumped to
  std::optional<std::int32_t> scroll_to;

  std::shared_ptr<const StepKeys> view_of;
  KeysAgainst view_against = KeysAgainst::read;
  int view_k = 0;
  KeyView view;
  TokenLines lines;  ///< of the prefix
};

}  // namespace blockscope
