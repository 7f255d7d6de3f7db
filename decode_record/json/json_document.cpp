#include "decode_record/json/json_document.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>

#include "decode_record/base/error.h"
#include "decode_record/json/strict_json.h"

namespace blockscope {
namespace {

constexpr std::uintmax_t kMostDocumentBytes = std::uintmax_t{256} << 20;
constexpr std::size_t kMostValues = std::size_t{1} << 25;  // 16 bytes each, some of them twice

}  // namespace

std::string read_document(const std::string& path) {
  std::error_code error;
  const bool regular = std::filesystem::is_regular_file(path, error);
  std::ifstream stream;
  if (regular) stream.open(path, std::ios::binary);  // opening a pipe would block
  if (!regular || !stream) {
    const bool exists = std::filesystem::exists(path, error);
    throw TrajectoryError(
        fmt::format("{}: file: expected a readable JSON file, got {}", path,
                    regular ? "one that can't be opened" : (exists ? "no regular file" : "none")));
  }
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error || size > kMostDocumentBytes) {
    throw TrajectoryError(
        fmt::format("{}: file: expected at most {} bytes of JSON, got more. HINT: divide it by "
                    "sequences; repack --merge joins their traces",
                    path, kMostDocumentBytes));
  }
  std::string text(static_cast<std::size_t>(size), '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (stream.gcount() != static_cast<std::streamsize>(text.size()) || stream.bad()) {
    throw TrajectoryError(
        fmt::format("{}: file: expected {} bytes, got {}", path, text.size(), stream.gcount()));
  }
  return text;
}

nlohmann::json parse_document(std::string_view text, const std::string& name, std::size_t depth) {
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    throw TrajectoryError(fmt::format("{}: file: expected JSON, got an empty file", name));
  }
  try {
    return parse_strict_json(text, {.depth = depth, .values = kMostValues});
  } catch (const JsonFault& fault) {
    throw TrajectoryError(fmt::format("{}: {}: {}", name, fault.place(), fault.text()));
  }
}

}  // namespace blockscope
