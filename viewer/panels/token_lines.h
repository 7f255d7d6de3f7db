// Lays tokens out in lines as wide as a panel, once per text and width. Also draws one entry of a
// legend. Shared by the panels that show text token by token.
#pragma once

#include <imgui.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "viewer/model/data_service.h"

namespace blockscope {

struct TokenLines {
  std::shared_ptr<const Payload> of;
  float width = 0.0F, font_size = 0.0F;  ///< that the layout was made for
  std::vector<float> left, wide;         ///< [N], in pixels; left is measured from the line's start
  std::vector<std::size_t> first;        ///< first token of each line, and N at the end

  std::size_t count() const { return first.empty() ? 0 : first.size() - 1; }
  /// The line of a token.
  std::size_t line_of(std::size_t token) const;
  /// The token at a place measured from the first line's start; -1 if there is none.
  std::int64_t token_at(ImVec2 place, float line_height) const;
};

struct TokenTexts {
  std::size_t count = 0;
  std::function<std::string(std::size_t)> label;  ///< readable; spaces before a word stay before it
  bool words = true;  ///< false: labels are numbers and get a space between them
  std::size_t break_at = ~std::size_t{0};  ///< this token starts a new line
};
/// Lays the tokens out in lines of `width` pixels, unless `lines` already has this layout. A line
/// ends after a token that ends with a line break.
void lay_out(TokenLines& lines, const std::shared_ptr<const Payload>& of, float width,
             const TokenTexts& texts);

/// The visible lines in the current child window: [first, last).
struct SeenLines {
  std::size_t first = 0, last = 0;
};
SeenLines seen_lines(std::size_t count, float line_height);

/// The label without the spaces before its word.
const char* without_spaces(const char* label);

/// Swatch and text on the current line, or on a new one if the line has no room.
void legend_entry(const std::string& text, float scale,
                  const std::function<void(ImDrawList*, ImVec2 low, ImVec2 high)>& draw_swatch);

}  // namespace blockscope
