// The state of the Draft panel, and its parts below its controls and numbers.
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
  std::int64_t shown_row = -1;  ///< the selected row that the panel last scrolled to
  SeenLines drawn;              ///< rounds, or lines of the answer, in the last frame

  std::shared_ptr<const ShownRounds> values_of;
  DraftColour values_colour = DraftColour::outcome;
  DraftValues values;
  TokenLines lines;  ///< of the answer
};

/// In the whole panel, blue marks the target's own tokens and green the accepted drafted ones.
inline constexpr Colour kTargetColour = kSkyBlue;
inline constexpr Colour kAcceptedColour = kGreen;
inline constexpr Colour kRejectedColour = kVermilion;
/// The target's token is not in the draft's vocabulary.
inline constexpr Colour kLackingColour = kPurple;

/// Colour of the tokens after a round's first rejected one.
Colour behind_colour();
/// Colour of an accepted token by its position in a block of `block_length`: later is darker.
Colour colour_of_position(std::int32_t position, std::int32_t block_length);
/// Colour of a rank_class(): the first class has the map's high end.
Colour colour_of_rank_class(std::size_t index, const Colormap& map);
/// Colour of a recorded value. `largest`: the sequence's largest value, for a scale without an end.
Colour colour_of_value(float value, DraftColourInfo::Scale scale, float largest,
                       const Colormap& map);

/// The rounds as lines, positions of the block as columns; a click selects.
void draw_draft_rounds(PanelContext& context, const ShownRounds& rounds);
/// The answer's text, coloured by the origin of each token; a click selects its round.
void draw_draft_answer(PanelContext& context, const std::shared_ptr<const ShownRounds>& rounds);

/// Scrolls the current child window to a line, if the selected row has changed and the line is not
/// visible. `covered`: pixels at the top that are covered by something else.
void follow_selection(PanelContext& context, std::size_t line, float line_height, float covered);

}  // namespace blockscope
