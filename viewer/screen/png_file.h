// Writes a picture.
#pragma once

#include <cstdint>
#include <span>

#include "decode_record/files/output_file.h"

namespace blockscope {

/// Writes RGBA8 rows from the top into a file that the caller commits. Throws Error with the path
/// if that fails.
void write_png(const OutputFile& file, int width, int height, std::span<const std::uint32_t> rgba);

}  // namespace blockscope
