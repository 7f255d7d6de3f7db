// The viewer's server: one page, and a WebSocket and a process of its own for each person.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace blockscope {

struct ServeOptions {
  int port = 0;                      ///< 0: the first free one from kFirstPort
  std::string listen = "127.0.0.1";  ///< address to listen on
  std::vector<std::string> hosts;    ///< further names under which browsers reach the server
  std::string secret;                ///< what the address must contain
  /// One person's viewer, in a process of its own, until the socket's other end is closed.
  std::function<void(int socket)> view;
  /// Called once the server listens.
  std::function<void(int port)> ready;
};

inline constexpr int kFirstPort = 8765;

/// 32 random hexadecimal digits.
std::string random_secret();

/// Serves until a signal asks it to end. Throws Error if the port is taken or the address is not
/// one of this machine.
void serve(const ServeOptions& options);

}  // namespace blockscope
