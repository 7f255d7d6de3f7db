#include "viewer/screen/png_file.h"

#include <fmt/format.h>
#include <png.h>

#include <cerrno>
#include <cstring>

#include "decode_record/base/error.h"
#include "decode_record/files/output_file.h"

namespace blockscope {

void write_png(const OutputFile& file, int width, int height, std::span<const std::uint32_t> rgba) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  image.format = PNG_FORMAT_RGBA;
  if (png_image_write_to_file(&image, file.temporary().c_str(), 0, rgba.data(), 0, nullptr) == 0) {
    const std::string reason = errno != 0 ? std::strerror(errno) : image.message;
    throw Error(fmt::format("{}: can't write the picture: {}. HINT: choose a writable folder",
                            file.path(), reason));
  }
}

}  // namespace blockscope
