// The state of the Selection panel, and its parts below its controls and numbers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "viewer/model/colormap.h"
#include "viewer/model/step_keys.h"
#include "viewer/panels/panels.h"
#include "viewer/panels/token_lines.h"

namespace blockscope {

struct SelectionState {
  KeysAgainst against = KeysAgainst::read;
  int k = 0;                       ///< keys that KeysAgainst::first compares; 0: all
  int jump = 0;                    ///< 0: to any mark; 1: hits, 2: misses, 3: extra
  std::optional<std::int32_t> at;  ///< the position jumped to
  std::optional<std::int32_t> scroll_to;

  std::shared_ptr<const StepKeys> view_of;
  KeysAgainst view_against = KeysAgainst::read;
  int view_k = 0;
  KeyView view;
  TokenLines lines;  ///< of the prefix
};

/// Green, vermilion or sky blue of Okabe and Ito: colour-blind people can tell them apart, and none
/// is the colour of A_out or A_in.
Colour colour_of(KeyMark mark);

/// Draws a key's mark from `low` to `high`: filled in the upper half for the exact set, in the
/// lower half for the chosen one.
void draw_mark(ImDrawList* draw, ImVec2 low, ImVec2 high, KeyMark mark);

/// Swatch and text on the current line, or on a new one if the line has no room.
void draw_legend_entry(KeyMark mark, const std::string& text, float scale);

/// The whole prefix as a strip, and its text with the marks; a click in the strip scrolls.
void draw_prefix(PanelContext& context, const StepKeys& keys, const KeyView& view,
                 const std::shared_ptr<const PrefixText>& text);

}  // namespace blockscope
