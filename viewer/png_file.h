// Writes a picture, atomically: a failed write leaves nothing under the final name.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace blockscope {

/// RGBA8 rows from the top. Throws Error naming the path when it can't be written, UsageError when
/// it exists and `replace` is false.
void write_png(const std::string& path, int width, int height, std::span<const std::uint32_t> rgba,
               bool replace);

}  // namespace blockscope
