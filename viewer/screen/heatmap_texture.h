// A picture of cells as a texture that Dear ImGui hands to the screen, like those of its fonts.
#pragma once

#include <imgui.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace blockscope {

class HeatmapTexture {
 public:
  HeatmapTexture() = default;
  ~HeatmapTexture();
  HeatmapTexture(const HeatmapTexture&) = delete;
  HeatmapTexture& operator=(const HeatmapTexture&) = delete;

  /// Replaces the picture: `width` x `height` RGBA8 texels, rows from the top.
  void set(int width, int height, std::span<const std::uint32_t> rgba);
  bool empty() const { return texture_ == nullptr; }
  ImTextureRef ref() const;

 private:
  void retire();

  std::unique_ptr<ImTextureData> texture_;
  std::vector<std::unique_ptr<ImTextureData>> retired_;  // until the screen has let them go
};

/// Whether enlarged texels keep sharp borders: cells of a heatmap do, letters don't.
inline bool has_sharp_texels(const ImTextureData& texture) { return texture.UseColors; }

}  // namespace blockscope
