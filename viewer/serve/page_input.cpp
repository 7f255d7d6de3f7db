#include "viewer/serve/page_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "decode_record/base/error.h"

namespace blockscope {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMostEvents = 1000;
constexpr std::size_t kMostTyped = 4096;  // bytes
constexpr std::size_t kMostLink = 1024;   // bytes
constexpr float kMostPagePixels = 8192.0F * 4096.0F;

[[noreturn]] void refuse(const Json& event, const char* expected) {
  std::string found = event.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (found.size() > 80) found = found.substr(0, 80) + "...";
  throw Error(fmt::format("a message of the page: expected {}, found {}", expected, found));
}

/// Value `at` of an event, finite and between `low` and `high`.
float number(const Json& event, std::size_t at, float low, float high) {
  if (at >= event.size() || !event[at].is_number()) refuse(event, "a number");
  const auto value = event[at].get<float>();
  if (!std::isfinite(value) || value < low || value > high) refuse(event, "a number in its range");
  return value;
}

bool flag(const Json& event, std::size_t at) { return number(event, at, 0.0F, 1.0F) > 0.5F; }

std::string text(const Json& event, std::size_t at, std::size_t most) {
  if (at >= event.size() || !event[at].is_string()) refuse(event, "a text");
  auto value = event[at].get<std::string>();
  if (value.size() > most) refuse(event, "a shorter text");
  return value;
}

PageInput size_of(const Json& event) {
  const PageSize size = {number(event, 1, 1.0F, 16384.0F), number(event, 2, 1.0F, 16384.0F),
                         number(event, 3, 0.1F, 10.0F)};
  if (size.width * size.height * size.scale * size.scale > kMostPagePixels) {
    refuse(event, "at most 8192 x 4096 pixels");
  }
  return size;
}

PageInput event_of(const Json& event) {
  constexpr float kFar = 1e6F;
  if (!event.is_array() || event.empty() || !event[0].is_string()) {
    refuse(event, "an array that begins with a letter");
  }
  const std::string kind = text(event, 0, 1);
  switch (kind.empty() ? '\0' : kind[0]) {
    case 's':
      return size_of(event);
    case 'm':
      return PointerMove{number(event, 1, -kFar, kFar), number(event, 2, -kFar, kFar)};
    case 'b':
      return PointerButton{static_cast<int>(number(event, 1, 0.0F, 2.0F)), flag(event, 2)};
    case 'w':
      return PointerWheel{number(event, 1, -1000.0F, 1000.0F), number(event, 2, -1000.0F, 1000.0F)};
    case 'k':
      return KeyPress{text(event, 1, 32), flag(event, 2)};
    case 'x':
      return Modifiers{flag(event, 1), flag(event, 2), flag(event, 3)};
    case 't':
      return TypedText{text(event, 1, kMostTyped)};
    case 'p':
      return PastedText{text(event, 1, kMostEventBytes)};
    case 'f':
      return PageFocus{flag(event, 1)};
    case 'a':
      if (event.size() < 2 || !event[1].is_number_unsigned()) refuse(event, "a frame's number");
      return FrameShown{event[1].get<std::uint32_t>()};
    case 'l':
      return LinkFollowed{text(event, 1, kMostLink)};
    default:
      refuse(event, "one of s, m, b, w, k, x, t, p, f, a, l");
  }
}

}  // namespace

std::vector<PageInput> read_events(std::string_view message) {
  if (message.size() > kMostEventBytes) {
    throw Error(fmt::format("a message of the page: expected at most {} bytes, found {}",
                            kMostEventBytes, message.size()));
  }
  // An event has no arrays inside; deeper ones would only make the error's text recursive.
  const auto shallow = [](int depth, Json::parse_event_t, Json&) { return depth < 3; };
  const Json events = Json::parse(message, shallow, false);
  if (!events.is_array() || events.size() > kMostEvents) {
    throw Error(fmt::format("a message of the page: expected a JSON array of at most {} events",
                            kMostEvents));
  }
  std::vector<PageInput> inputs;
  for (const Json& event : events) inputs.push_back(event_of(event));
  return inputs;
}

FileGiven read_given_file(std::string_view message) {
  const auto byte = [&](std::size_t at) {
    return static_cast<std::size_t>(static_cast<unsigned char>(message[at]));
  };
  const std::size_t length = message.size() < 2 ? 0 : byte(0) + 256 * byte(1);
  if (length == 0 || length > 255 || message.size() < 2 + length) {
    throw Error("a file of the page: expected a name of 1 to 255 bytes");
  }
  FileGiven file{std::string(message.substr(2, length)), std::string(message.substr(2 + length))};
  const bool plain = std::ranges::all_of(
      file.name, [](unsigned char letter) { return letter >= 0x20 && letter != '/'; });
  if (!plain || file.name == "." || file.name == "..") {
    throw Error("a file of the page: expected a name without a folder");
  }
  return file;
}

}  // namespace blockscope
