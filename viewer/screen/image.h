// A picture in memory.
#pragma once

#include <cstdint>
#include <vector>

namespace blockscope {

struct Image {
  int width = 0;
  int height = 0;
  std::vector<std::uint32_t> rgba;  ///< rows from the top
};

/// A part of an image, in pixels from the top left. Parts outside the image are cut off.
Image cropped(const Image& image, float left, float top, float width, float height);

}  // namespace blockscope
