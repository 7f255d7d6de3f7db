// Draws what Dear ImGui wants drawn into memory, without a graphics driver: for pictures of the
// viewer on machines that have neither display nor OpenGL.
#pragma once

#include "viewer/screen/image.h"

struct ImDrawData;

namespace blockscope {

/// The picture that OpenGL's rules give (pixel centres, each pixel of a shared edge once, straight
/// alpha), with the size DisplaySize * FramebufferScale. Its textures must have their pixels in
/// memory.
Image rasterized(const ImDrawData& data);

}  // namespace blockscope
