// What a page sends to its viewer, checked. Anybody who has the address can send anything.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace blockscope {

struct PageSize {
  float width, height;  ///< CSS pixels
  float scale;          ///< device pixels for one of them
};
struct PointerMove {
  float x, y;  ///< CSS pixels
};
struct PointerButton {
  int button;  ///< 0: left, 1: right, 2: middle
  bool down;
};
struct PointerWheel {
  float x, y;  ///< lines; positive: to the left, upwards
};
struct KeyPress {
  std::string name;  ///< as Dear ImGui calls the key: "LeftArrow", "A"
  bool down;
};
struct Modifiers {
  bool control, shift, alt;
};
struct TypedText {
  std::string text;
};
struct PastedText {
  std::string text;
};
struct PageFocus {
  bool focused;
};
struct FrameShown {
  std::uint32_t frame;
};
struct LinkFollowed {
  std::string link;  ///< without '#'
};
struct FileGiven {
  std::string name;  ///< without a folder
  std::string bytes;
};
using PageInput =
    std::variant<PageSize, PointerMove, PointerButton, PointerWheel, KeyPress, Modifiers, TypedText,
                 PastedText, PageFocus, FrameShown, LinkFollowed, FileGiven>;

/// Largest messages: of events, and with a file.
inline constexpr std::size_t kMostEventBytes = std::size_t{64} << 10U;
inline constexpr std::size_t kMostFileBytes = std::size_t{4} << 20U;

/// A message of events: a JSON array of arrays, each with a letter and its values. Throws Error
/// that names what is wrong.
std::vector<PageInput> read_events(std::string_view message);

/// A message with a file: the length of its name in two bytes (little-endian), name, bytes.
FileGiven read_given_file(std::string_view message);

}  // namespace blockscope
