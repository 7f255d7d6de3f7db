#include "viewer/serve/page_access.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace blockscope {
namespace {

constexpr std::array<std::string_view, 3> kLoopback = {"localhost", "127.0.0.1", "[::1]"};

/// Takes as long for a wrong first letter as for a wrong last one.
bool same_secret(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned>(a[i]) ^ static_cast<unsigned>(b[i]);
  }
  return difference == 0;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

}  // namespace

bool is_loopback(std::string_view address) { return address.starts_with("127."); }

std::string host_name(std::string_view host) {
  const auto bracket = host.find(']');
  const auto colon = host.find(':', bracket == std::string_view::npos ? 0 : bracket);
  return lower(host.substr(0, colon));
}

std::string refusal(const PageRequest& request, std::string_view secret,
                    const std::vector<std::string>& hosts, bool any_host, bool websocket) {
  const std::string name = host_name(request.host);
  // A site whose name is made to point to this machine must not reach the viewer (DNS rebinding).
  const bool named = std::ranges::any_of(
      hosts, [&](const std::string& host) { return host == "*" || lower(host) == name; });
  if (!any_host && !named && !std::ranges::count(kLoopback, name)) {
    return "The server does not answer for this host name. If a proxy leads to it, start it with "
           "--host NAME.";
  }
  if (websocket) {
    const auto scheme = request.origin.find("://");
    if (scheme == std::string::npos ||
        lower(std::string_view(request.origin).substr(scheme + 3)) != lower(request.host)) {
      return "The connection comes from another page.";
    }
  }
  if (!same_secret(request.secret, secret)) {
    return "The address lacks its key. Use the whole address that `blockscope view --serve` "
           "printed, with ?key=...";
  }
  return "";
}

}  // namespace blockscope
