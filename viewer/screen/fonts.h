// Fonts of the system, found through fontconfig: one for the interface, and fallbacks that make
// tokens in other scripts readable.
#pragma once

#include <string>
#include <vector>

namespace blockscope {

struct FontChoice {
  std::string file;
  int index = 0;     ///< face in a collection (.ttc)
  std::string what;  ///< "DejaVu Sans", for the Run panel
};

/// The interface's font first, then fallbacks (CJK, Arabic, Devanagari, symbols); no file twice.
/// Empty when the system has no font at all: then Dear ImGui's own is used, Latin only.
std::vector<FontChoice> find_fonts();

/// Adds them to the current ImGui context at this size in pixels (glyphs are made on demand).
void load_fonts(const std::vector<FontChoice>& fonts, float size);

}  // namespace blockscope
