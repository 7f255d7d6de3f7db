// Messages between the server and the process of one person, over a socket pair: the length of the
// payload in four bytes, its kind in one, the payload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace blockscope {

enum class LinkKind : char {
  events = 'e',    ///< from the page: events
  file = 'u',      ///< from the page: a file
  attached = 'o',  ///< a page came, and knows nothing
  detached = 'c',  ///< the page went away
  message = 'm',   ///< to the page, unchanged
  refused = 'r',   ///< to the server: the page sent what no page sends; the payload says what
};

inline constexpr std::size_t kLinkHeader = 5;

inline std::string link_header(LinkKind kind, std::size_t bytes) {
  std::string header;
  for (int shift = 0; shift < 32; shift += 8) {
    header.push_back(static_cast<char>((bytes >> static_cast<unsigned>(shift)) & 0xFFU));
  }
  header.push_back(static_cast<char>(kind));
  return header;
}

inline std::size_t link_payload_bytes(std::string_view header) {
  std::size_t bytes = 0;
  for (unsigned i = 0; i < 4; ++i) {
    bytes |= static_cast<std::size_t>(static_cast<unsigned char>(header[i])) << (8U * i);
  }
  return bytes;
}

}  // namespace blockscope
