// What passes between one person's page and the process of their viewer: in pieces, so that the
// server holds little, and at the pace of the slower of them.
#pragma once

#include <libwebsockets.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

#include "viewer/serve/session_link.h"

namespace blockscope {

inline constexpr std::size_t kPiece = std::size_t{32} << 10U;

/// lws passes `list` to the callback; it is first, so that is the timer.
struct Timer {
  lws_sorted_usec_list_t list{};
  void* owner = nullptr;

  template <typename Owner>
  static Owner& owner_of(lws_sorted_usec_list_t* list) {
    return *static_cast<Owner*>(reinterpret_cast<Timer*>(list)->owner);
  }
};

struct Session {
  Timer retry;  // of writing to the process; see write_child()
  std::string id;
  pid_t process = -1;
  lws* child = nullptr;                        // the socket to the process
  lws* page = nullptr;                         // nullptr: nobody looks now
  std::chrono::steady_clock::time_point left;  // when the page went away
  std::string to_child;                        // not yet written
  std::string from_page;                       // a message that is still arriving
  bool from_page_is_file = false;
  std::string header;            // of the message that comes from the process
  std::size_t message_left = 0;  // bytes of it
  bool message_begins = false;
  bool forward = false;                         // to the page; else nobody wants it
  std::string piece;                            // read, and not yet sent to the page
  std::string refused;                          // why, as far as it has arrived
  bool refusing = false;                        // the message that comes is that reason
  std::string crash;                            // how the process ended, if not by itself
  bool over = false;                            // the viewer was closed
  std::chrono::steady_clock::time_point ended;  // when that was noticed

  /// Sends the process a message.
  void tell(LinkKind kind, std::string_view payload);
  /// The page is gone.
  void detach();
  /// A piece of a message of the page; false if the message is too long.
  bool take(lws* wsi, const char* data, std::size_t length);
  /// Whether the page has got the beginning of a message, but not its end.
  bool in_a_message() const {
    return forward && !message_begins && message_left + piece.size() > 0;
  }

  // What lws asks for; -1 closes the connection.
  int write_child();
  int read_child();
  int write_page();
};

}  // namespace blockscope
