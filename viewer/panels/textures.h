// Heatmaps as OpenGL textures with a colour map, one texel per cell. A texture is made again only
// if the values, the range or the map change.
#pragma once

#include <imgui.h>

#include <map>
#include <memory>
#include <string>

#include "viewer/model/colormap.h"
#include "viewer/model/queries.h"

namespace blockscope {

class Textures {
 public:
  Textures() = default;
  ~Textures();
  Textures(const Textures&) = delete;
  Textures& operator=(const Textures&) = delete;

  /// The texture of a panel's matrix; `transpose` shows columns as rows. Needs a current OpenGL
  /// context.
  ImTextureID heatmap(const std::string& panel, const std::shared_ptr<const MatrixPayload>& matrix,
                      float low, float high, const Colormap& map, bool transpose);

 private:
  struct Entry {
    unsigned id = 0;
    std::shared_ptr<const MatrixPayload> matrix;
    float low = 0.0F, high = 0.0F;
    std::string map;
    bool transpose = false;
  };
  std::map<std::string, Entry> entries_;
};

}  // namespace blockscope
