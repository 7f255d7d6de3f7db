#include "viewer/serve/session.h"

#include <libwebsockets.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "command_line/standard_streams.h"
#include "viewer/serve/page_input.h"

namespace blockscope {
namespace {

constexpr std::size_t kMostWaiting = std::size_t{1} << 20U;  // bytes for a viewer that is busy

}  // namespace

void Session::detach() {
  page = nullptr;
  left = std::chrono::steady_clock::now();
  forward = false;
  piece.clear();
  if (child != nullptr) {
    lws_rx_flow_control(child, 1);
    tell(LinkKind::detached, "");
  }
}

void Session::tell(LinkKind kind, std::string_view payload) {
  if (child == nullptr) return;
  to_child += link_header(kind, payload.size());
  to_child += payload;
  lws_callback_on_writable(child);
  // A busy viewer: the browser waits, and its memory holds what it wants to send.
  if (to_child.size() > kMostWaiting && page != nullptr) {
    lws_rx_flow_control(page, 0);
  }
}

bool Session::take(lws* wsi, const char* data, std::size_t length) {
  if (lws_is_first_fragment(wsi) != 0) {
    from_page.clear();
    from_page_is_file = lws_frame_is_binary(wsi) != 0;
  }
  const std::size_t most = from_page_is_file ? kMostFileBytes : kMostEventBytes;
  if (from_page.size() + length > most) return false;
  from_page.append(data, length);
  if (lws_is_final_fragment(wsi) == 0 || lws_remaining_packet_payload(wsi) != 0) return true;
  tell(from_page_is_file ? LinkKind::file : LinkKind::events, from_page);
  std::string().swap(from_page);
  return true;
}

int Session::write_child() {
  while (!to_child.empty()) {
    const ssize_t count = ::send(lws_get_socket_fd(child), to_child.data(),
                                 std::min(to_child.size(), kPiece), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
      // Not lws_callback_on_writable(): lws forgets what is asked for inside this callback.
      constexpr lws_usec_t kPause = 1000;
      lws_sul_schedule(
          lws_get_context(child), 0, &retry.list,
          [](lws_sorted_usec_list_t* timer) {
            const Session& waiting = Timer::owner_of<Session>(timer);
            if (waiting.child != nullptr) lws_callback_on_writable(waiting.child);
          },
          kPause);
      break;
    }
    if (count <= 0) return -1;
    to_child.erase(0, static_cast<std::size_t>(count));
  }
  if (to_child.empty()) std::string().swap(to_child);  // a large file was in it
  if (to_child.size() < kMostWaiting / 2 && page != nullptr) {
    lws_rx_flow_control(page, 1);
  }
  return 0;
}

/// Reads one piece of a message. The next one is read when the page has taken it.
int Session::read_child() {
  const int socket = lws_get_socket_fd(child);
  const auto get = [&](char* to, std::size_t most) {
    const ssize_t count = ::recv(socket, to, most, MSG_DONTWAIT);
    return count < 0 && (errno == EAGAIN || errno == EINTR) ? -2 : count == 0 ? -1 : count;
  };
  if (!piece.empty()) {  // an event that was already on its way
    lws_rx_flow_control(child, 0);
    return 0;
  }
  if (message_left == 0) {
    std::array<char, kLinkHeader> bytes{};
    const ssize_t count = get(bytes.data(), kLinkHeader - header.size());
    if (count < 0) return count == -2 ? 0 : -1;
    header.append(bytes.data(), static_cast<std::size_t>(count));
    if (header.size() < kLinkHeader) return 0;
    message_left = link_payload_bytes(header);
    message_begins = true;
    const auto kind = static_cast<LinkKind>(header.back());
    forward = kind == LinkKind::message && page != nullptr;
    header.clear();
    refusing = kind == LinkKind::refused;
    refused.clear();
    return 0;
  }
  std::string read(std::min(message_left, kPiece), '\0');
  const ssize_t count = get(read.data(), read.size());
  if (count < 0) return count == -2 ? 0 : -1;
  read.resize(static_cast<std::size_t>(count));
  message_left -= read.size();
  if (refusing) {
    // No page of ours sends this. Whoever does may come back with a page of ours.
    if (refused.size() < kPiece) refused += read;
    if (message_left > 0) return 0;
    note("blockscope: view --serve: {}. The connection is closed.\n", refused);
    if (page != nullptr) {
      lws_set_timeout(page, PENDING_TIMEOUT_USER_REASON_BASE, LWS_TO_KILL_ASYNC);
    }
    return 0;
  }
  if (!forward || page == nullptr) return 0;
  piece = std::move(read);
  lws_rx_flow_control(child, 0);
  lws_callback_on_writable(page);
  return 0;
}

int Session::write_page() {
  if (piece.empty()) return 0;
  std::string buffer(LWS_PRE, '\0');
  buffer += std::exchange(piece, {});
  const int kind =
      lws_write_ws_flags(LWS_WRITE_BINARY, message_begins ? 1 : 0, message_left == 0 ? 1 : 0);
  message_begins = false;
  const std::size_t length = buffer.size() - LWS_PRE;
  const int written = lws_write(page, reinterpret_cast<unsigned char*>(buffer.data()) + LWS_PRE,
                                length, static_cast<lws_write_protocol>(kind));
  if (written < static_cast<int>(length)) return -1;
  if (child != nullptr) lws_rx_flow_control(child, 1);
  return 0;
}

}  // namespace blockscope
