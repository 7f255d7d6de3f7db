// What the Draft panel remembers, and its parts below its controls and numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "viewer/model/draft_view.h"
#include "viewer/panels/panels.h"
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

/// Blue is the target's own everywhere in the panel, green what was drafted and accepted.
inline constexpr Colour kTargetColour = kSkyBlue;
inline constexpr Colour kAcceptedColour = kGreen;
inline constexpr Colour kRejectedColour = kVermilion;
/// The target's token is not in the draft's vocabulary.
inline constexpr Colour kLackingColour = kPurple;

/// Behind a round's first rejected token.
Colour behind_colour();
/// Of an accepted token, by its position in a block of `block_length`: darker further behind.
Colour colour_of_position(std::int32_t position, std::int32_t block_length);
/// Of rank_class(): the first one is the map's high end.
Colour colour_of_rank_class(std::size_t index, const Colormap& map);
/// Of a value that was recorded; `largest`: of the sequence, where the scale has no end.
Colour colour_of_value(float value, DraftColourInfo::Scale scale, float largest,
                       const Colormap& map);

/// The rounds as lines, positions of the block as columns; a click selects.
void draw_draft_rounds(PanelContext& context, const ShownRounds& rounds);
/// The answer's text, by who told each token; a click selects its round.
void draw_draft_answer(PanelContext& context, const std::shared_ptr<const ShownRounds>& rounds);

/// Scrolls to a line of the child window being drawn when another row is selected than the panel
/// showed last, and the line can't be seen. `covered`: pixels at the top that something lies over.
void follow_selection(PanelContext& context, std::size_t line, float line_height, float covered);

}  // namespace blockscope
