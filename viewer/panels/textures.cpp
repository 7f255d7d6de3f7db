#include "viewer/panels/textures.h"

#include <imgui_impl_opengl3_loader.h>

#include <utility>
#include <vector>

namespace blockscope {

Textures::~Textures() {
  for (const auto& [panel, entry] : entries_) glDeleteTextures(1, &entry.id);
}

ImTextureID Textures::heatmap(const std::string& panel,
                              const std::shared_ptr<const MatrixPayload>& matrix, float low,
                              float high, const Colormap& map, bool transpose) {
  Entry& entry = entries_[panel];
  if (entry.id != 0 && entry.matrix == matrix && entry.low == low && entry.high == high &&
      entry.map == map.name() && entry.transpose == transpose) {
    return entry.id;
  }
  if (entry.id == 0) glGenTextures(1, &entry.id);
  const SimilarityMatrix& values = matrix->matrix;
  std::vector<Colour> pixels = colour_image(values.values, low, high, map);
  auto width = values.columns;
  auto height = values.rows;
  if (transpose) {
    std::vector<Colour> turned(pixels.size());
    for (std::size_t row = 0; row < values.rows; ++row) {
      for (std::size_t column = 0; column < values.columns; ++column) {
        turned[column * values.rows + row] = pixels[row * values.columns + column];
      }
    }
    pixels = std::move(turned);
    std::swap(width, height);
  }
  glBindTexture(GL_TEXTURE_2D, entry.id);
  glTexParameteri(GL_TEXTURE_2D, GL_TEXTURE_MIN_FILTER, GL_LINEAR);
  glTexParameteri(GL_TEXTURE_2D, GL_TEXTURE_MAG_FILTER, GL_NEAREST);
  glPixelStorei(GL_UNPACK_ALIGNMENT, 4);
  glTexImage2D(GL_TEXTURE_2D, 0, GL_RGBA, static_cast<GLsizei>(width), static_cast<GLsizei>(height),
               0, GL_RGBA, GL_UNSIGNED_BYTE, pixels.data());
  entry = {entry.id, matrix, low, high, map.name(), transpose};
  return entry.id;
}

}  // namespace blockscope
