// Writes a picture.
#pragma once

#include <cstdint>
#include <span>

#include "decode_record/files/output_file.h"

namespace blockscope {

/// RGBA8 rows from the top, into a file that the caller commits. Throws Error naming the path when
/// it can't be written.
void write_png(const OutputFile& file, int width, int height, std::span<const std::uint32_t> rgba);

}  // namespace blockscope
