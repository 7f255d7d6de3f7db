#include "decode_record/json_document.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <vector>

#include "decode_record/error.h"

namespace blockscope {
namespace {

constexpr std::uintmax_t kMostBytes = std::uintmax_t{256} << 20;
constexpr std::size_t kMostValues = std::size_t{1} << 25;  // 16 bytes each, some of them twice

}  // namespace

std::string read_document(const std::string& path) {
  std::error_code error;
  const bool regular = std::filesystem::is_regular_file(path, error);
  std::ifstream stream;
  if (regular) stream.open(path, std::ios::binary);  // opening a pipe would wait for its writer
  if (!regular || !stream) {
    const bool exists = std::filesystem::exists(path, error);
    throw TrajectoryError(
        fmt::format("{}: file: expected a readable JSON file, got {}", path,
                    regular ? "one that can't be opened" : (exists ? "no regular file" : "none")));
  }
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error || size > kMostBytes) {
    throw TrajectoryError(
        fmt::format("{}: file: expected at most {} bytes of JSON, got more. HINT: divide it by "
                    "sequences; repack --merge joins their traces",
                    path, kMostBytes));
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
  using nlohmann::json;
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    throw TrajectoryError(fmt::format("{}: file: expected JSON, got an empty file", name));
  }
  std::vector<std::set<std::string>> names;  // of the members of the objects around this place
  std::size_t values = 0;
  const auto look = [&](int level, json::parse_event_t event, json& value) {
    const bool opens =
        event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
    if (opens && static_cast<std::size_t>(level) >= depth) {
      throw TrajectoryError(fmt::format(
          "{}: file: expected at most {} arrays or objects in each other, got more", name, depth));
    }
    if ((opens || event == json::parse_event_t::value) && ++values > kMostValues) {
      throw TrajectoryError(
          fmt::format("{}: file: expected at most {} values, got more. HINT: divide it by "
                      "sequences; repack --merge joins their traces",
                      name, kMostValues));
    }
    if (event == json::parse_event_t::object_start) names.emplace_back();
    if (event == json::parse_event_t::object_end) names.pop_back();
    if (event == json::parse_event_t::key) {
      const auto key = value.get<std::string>();
      if (!names.back().insert(key).second) {
        throw TrajectoryError(
            fmt::format("{}: file: expected each member of an object once, got {} twice", name,
                        json(key).dump(-1, ' ', false, json::error_handler_t::replace)));
      }
    }
    return true;
  };
  try {
    return json::parse(text, look);
  } catch (const json::parse_error& error) {
    if (error.byte > text.size()) {
      throw TrajectoryError(
          fmt::format("{}: file: expected JSON, got text that ends in the middle", name));
    }
    throw TrajectoryError(fmt::format(
        "{}: byte {}: expected JSON, got text that does not parse (Python's NaN and Infinity are "
        "no JSON either)",
        name, error.byte));
  } catch (const json::out_of_range&) {
    throw TrajectoryError(
        fmt::format("{}: file: expected numbers that a double can hold, got a larger one", name));
  }
}

}  // namespace blockscope
