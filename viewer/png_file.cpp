#include "viewer/png_file.h"

#include <fmt/format.h>
#include <png.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "decode_record/error.h"

namespace blockscope {

void write_png(const std::string& path, int width, int height,
               std::span<const std::uint32_t> rgba) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  image.format = PNG_FORMAT_RGBA;
  const std::string temporary = path + ".tmp";
  if (png_image_write_to_file(&image, temporary.c_str(), 0, rgba.data(), 0, nullptr) == 0) {
    const std::string reason = errno != 0 ? std::strerror(errno) : image.message;
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw Error(fmt::format("{}: can't write the picture: {}. HINT: choose a writable folder", path,
                            reason));
  }
  std::filesystem::rename(temporary, path);
}

}  // namespace blockscope
