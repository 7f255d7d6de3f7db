// Heatmaps as textures with a colour map, one texel per cell. A texture is filled again only if the
// values, the range or the map change.
#pragma once

#include <imgui.h>

#include <map>
#include <memory>
#include <string>

#include "viewer/model/colormap.h"
#include "viewer/model/queries.h"
#include "viewer/screen/heatmap_texture.h"

namespace blockscope {

class Textures {
 public:
  /// The texture of a panel's matrix; `transpose` shows columns as rows.
  ImTextureRef heatmap(const std::string& panel, const std::shared_ptr<const MatrixPayload>& matrix,
                       float low, float high, const Colormap& map, bool transpose);

 private:
  struct Entry {
    HeatmapTexture texture;
    std::shared_ptr<const MatrixPayload> matrix;
    float low = 0.0F, high = 0.0F;
    std::string map;
    bool transpose = false;
  };
  std::map<std::string, Entry> entries_;
};

}  // namespace blockscope
