#include "viewer/panels/textures.h"

#include <utility>
#include <vector>

namespace blockscope {

ImTextureRef Textures::heatmap(const std::string& panel,
                               const std::shared_ptr<const MatrixPayload>& matrix, float low,
                               float high, const Colormap& map, bool transpose) {
  Entry& entry = entries_[panel];
  if (!entry.texture.empty() && entry.matrix == matrix && entry.low == low && entry.high == high &&
      entry.map == map.name() && entry.transpose == transpose) {
    return entry.texture.ref();
  }
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
  entry.texture.set(static_cast<int>(width), static_cast<int>(height), pixels);
  entry.matrix = matrix;
  entry.low = low;
  entry.high = high;
  entry.map = map.name();
  entry.transpose = transpose;
  return entry.texture.ref();
}

}  // namespace blockscope
