// What the Draft panel remembers, and what it made once of the values it shows.
#pragma once

#include <cstdint>
#include <memory>

#include "viewer/model/draft_view.h"
#include "viewer/panels/token_lines.h"

namespace blockscope {

struct DraftState {
  bool answer = false;  ///< the answer's text instead of the rounds
  DraftColour colour = DraftColour::outcome;
  std::int64_t shown_row = -1;  ///< selected when the panel last scrolled to it
  SeenLines drawn;              ///< rounds, or lines of the answer, in the last frame

  std::shared_ptr<const ShownRounds> values_of;
  DraftColour values_colour = DraftColour::outcome;
  DraftValues values;
  TokenLines lines;  ///< of the answer
};

}  // namespace blockscope
