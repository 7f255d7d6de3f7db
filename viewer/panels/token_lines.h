// Tokens laid out in lines as wide as a panel, once for a text and a width; and one entry of a
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
  float width = 0.0F, font_size = 0.0F;  ///< that it was made for
  std::vector<float> left, wide;         ///< [N], in pixels; left counts from the line's start
  std::vector<std::size_t> first;        ///< token that begins each line, and N at the end

  std::size_t count() const { return first.empty() ? 0 : first.size() - 1; }
  /// The line of a token, and the token at a place counted from the first line's start; -1: none.
  std::size_t line_of(std::size_t token) const;
  std::int64_t token_at(ImVec2 place, float line_height) const;
};

struct TokenTexts {
  std::size_t count = 0;
  std::function<std::string(std::size_t)> label;  ///< readable; spaces before a word stay before it
  bool words = true;                       ///< false: labels are numbers, with a space between them
  std::size_t break_at = ~std::size_t{0};  ///< begins a line of its own
};
/// Lays the tokens out in lines of `width` pixels unless `lines` has them so already. A line ends
/// behind a token that ends with a line break.
void lay_out(TokenLines& lines, const std::shared_ptr<const Payload>& of, float width,
             const TokenTexts& texts);

/// The lines that can be seen of `lines`, in the child window that is being drawn: [first, last).
struct SeenLines {
  std::size_t first = 0, last = 0;
};
SeenLines seen_lines(std::size_t count, float line_height);

/// The label without the spaces before its word.
const char* without_spaces(const char* label);

/// Swatch and text on the line of what was drawn before, or on a new one where it has no room.
void legend_entry(const std::string& text, float scale,
                  const std::function<void(ImDrawList*, ImVec2 low, ImVec2 high)>& draw_swatch);

}  // namespace blockscope
