// What Dear ImGui wants drawn, as messages for a page that has seen the ones before. A message
// holds only what changed: textures, and for each window's drawing the part between its first and
// its last change. docs/design/0028-viewer-in-a-browser.md has the layout; page.html reads it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

struct ImDrawCmd;
struct ImDrawData;
struct ImDrawList;
struct ImTextureData;

namespace blockscope {

class DrawStream {
 public:
  /// The next message, compressed (raw deflate); empty if nothing changed. Textures must have an
  /// identifier, and still the status that tells what changed in them.
  std::string next(const ImDrawData& data);
  /// The next message holds everything, for a page that knows nothing.
  void restart();

 private:
  struct Drawing {
    std::string name;
    std::string commands;                              // as they are sent
    std::vector<std::uint16_t> index_steps;            // each index minus the one before
    std::vector<std::vector<std::uint32_t>> vertices;  // x, y, u, v, colour
    bool operator==(const Drawing&) const = default;
  };

  static Drawing drawing_of(const ImDrawList& list);
  bool add_textures(const ImDrawData& data, std::string& out);
  bool add_drawings(const ImDrawData& data, std::string& out);

  std::map<std::uint32_t, bool> textures_;  // that the page has; true: still in use
  std::vector<Drawing> drawings_;           // as the page has them
  std::string frame_;                       // size and scale of the display
};

/// Raw deflate.
std::string deflated(const std::string& bytes);

}  // namespace blockscope
