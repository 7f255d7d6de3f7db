// Who may look: a request must name this server, come from its own page, and know the secret in the
// address.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace blockscope {

struct PageRequest {
  std::string host;    ///< header Host
  std::string origin;  ///< header Origin; empty: none was sent
  std::string secret;  ///< of the address
};

/// Why the request is refused; empty if it may pass. `any_host`: the server listens beyond this
/// machine, so its names are unknown. A WebSocket must name its origin.
std::string refusal(const PageRequest& request, std::string_view secret,
                    const std::vector<std::string>& hosts, bool any_host, bool websocket);

/// Whether only programs on this machine reach this IPv4 address.
bool is_loopback(std::string_view address);

/// The name in a Host header, without its port and in lower case; "[::1]" keeps its brackets.
std::string host_name(std::string_view host);

}  // namespace blockscope
