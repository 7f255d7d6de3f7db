#include "viewer/serve/server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <libwebsockets.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "command_line/interrupt.h"
#include "command_line/standard_streams.h"
#include "decode_record/base/error.h"
#include "viewer/serve/page_access.h"
#include "viewer/serve/page_input.h"
#include "viewer/serve/session_link.h"
#include "viewer/serve/viewer_process.h"

namespace blockscope {

extern const char* const kPage;  // page.html

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostSessions = 16;            // people at once; each has a process
constexpr auto kPatience = std::chrono::minutes(5);  // a page that lost its connection may return
constexpr std::size_t kPiece = std::size_t{32} << 10U;
constexpr std::size_t kMostWaiting = std::size_t{1} << 20U;  // bytes for a viewer that is busy
constexpr int kPortsTried = 100;
constexpr rlim_t kDescriptors = 8192;
constexpr const char* kProtocol = "blockscope";

/// lws passes `list` to the callback; it is first, so that is the timer.
struct Timer {
  lws_sorted_usec_list_t list{};
  void* owner = nullptr;

  template <typename Owner>
  static Owner& owner_of(lws_sorted_usec_list_t* list) {
    return *static_cast<Owner*>(reinterpret_cast<Timer*>(list)->owner);
  }
};

/// Why a page is closed: as a message, because proxies keep close codes to themselves.
struct Farewell {
  lws_close_status status;
  std::string text;
  bool forget = false;  ///< the page's next viewer is another one
  bool said = false;
};

struct Session {
  Timer retry;  // of writing to the process; see write_child()
  std::string id;
  pid_t process = -1;
  lws* child = nullptr;    // the socket to the process
  lws* page = nullptr;     // nullptr: nobody looks now
  Clock::time_point left;  // when the page went away
  std::string to_child;    // not yet written
  std::string from_page;   // a message that is still arriving
  bool from_page_is_file = false;
  std::string header;            // of the message that comes from the process
  std::size_t message_left = 0;  // bytes of it
  bool message_begins = false;
  bool forward = false;     // to the page; else nobody wants it
  std::string piece;        // read, and not yet sent to the page
  std::string refused;      // why, as far as it has arrived
  bool refusing = false;    // the message that comes is that reason
  std::string crash;        // how the process ended, if not by itself
  bool over = false;        // the viewer was closed
  Clock::time_point ended;  // when that was noticed
};

class Server {
 public:
  explicit Server(const ServeOptions& options) : options_(options) {}
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  void run();
  int on_http(lws* wsi, lws_callback_reasons reason, void* in);
  int on_page(lws* wsi, lws_callback_reasons reason, void* in, std::size_t length);
  int on_child(lws* wsi, lws_callback_reasons reason);

 private:
  bool listen_on(int port);
  std::string why_not(lws* wsi, bool websocket) const;
  Session* session_of_page(const lws* wsi);
  Session* session_of_child(const lws* wsi);
  int admit(lws* wsi);
  int dismiss(lws* wsi, Farewell farewell);
  int say(lws* wsi, Farewell& farewell);
  bool make_room();
  Session* begin_session(const std::string& id);
  void detach(Session& session);
  void end_session(Session& session);
  void over(Session& session);
  void tell(Session& session, LinkKind kind, std::string_view payload);
  int from_page(Session& session, lws* wsi, const char* data, std::size_t length);
  int read_child(Session& session);
  int write_page(Session& session);
  int write_child(Session& session);
  void look_after();

  ServeOptions options_;
  lws_context* context_ = nullptr;
  lws_vhost* host_ = nullptr;
  std::map<std::string, std::unique_ptr<Session>> sessions_;
  std::map<lws*, Farewell> farewells_;  // pages that are told why, and closed
  LeavingProcesses leaving_;
  Timer look_;
};

Server& server_of(lws* wsi) {
  return *static_cast<Server*>(lws_context_user(lws_get_context(wsi)));
}

int http_callback(lws* wsi, lws_callback_reasons reason, void* /*user*/, void* in,
                  std::size_t /*length*/) {
  return server_of(wsi).on_http(wsi, reason, in);
}

int page_callback(lws* wsi, lws_callback_reasons reason, void* /*user*/, void* in,
                  std::size_t length) {
  return server_of(wsi).on_page(wsi, reason, in, length);
}

int child_callback(lws* wsi, lws_callback_reasons reason, void* /*user*/, void* /*in*/,
                   std::size_t /*length*/) {
  // A WebSocket that asks for this protocol by its name.
  if (reason == LWS_CALLBACK_FILTER_PROTOCOL_CONNECTION) return -1;
  return server_of(wsi).on_child(wsi, reason);
}

const lws_protocols* protocols() {
  static const std::array<lws_protocols, 4> kAll = {
      {{"http", http_callback, 0, 0, 0, nullptr, 0},
       {kProtocol, page_callback, 0, kPiece, 0, nullptr, 0},
       {"viewer", child_callback, 0, 0, 0, nullptr, 0},
       {nullptr, nullptr, 0, 0, 0, nullptr, 0}}};
  return kAll.data();
}

std::string header_text(lws* wsi, lws_token_indexes token) {
  std::string text(static_cast<std::size_t>(lws_hdr_total_length(wsi, token)) + 1, '\0');
  const int length = lws_hdr_copy(wsi, text.data(), static_cast<int>(text.size()), token);
  text.resize(static_cast<std::size_t>(std::max(0, length)));
  return text;
}

std::string argument(lws* wsi, const char* name) {
  std::array<char, 256> buffer{};
  const std::string key = std::string(name) + "=";
  const char* found =
      lws_get_urlarg_by_name(wsi, key.c_str(), buffer.data(), static_cast<int>(buffer.size()));
  return found == nullptr ? "" : found;
}

constexpr auto kMoved = static_cast<lws_close_status>(4001);

/// Sends a short page with this status.
int answer(lws* wsi, unsigned status, const std::string& body, const char* type) {
  std::array<unsigned char, LWS_PRE + 2048> buffer{};
  unsigned char* const start = buffer.data() + LWS_PRE;
  unsigned char* at = start;
  unsigned char* const end = buffer.data() + buffer.size() - 1;
  const auto add = [&](const char* name, const std::string& value) {
    return lws_add_http_header_by_name(wsi, reinterpret_cast<const unsigned char*>(name),
                                       reinterpret_cast<const unsigned char*>(value.data()),
                                       static_cast<int>(value.size()), &at, end) != 0;
  };
  // The page loads nothing and sends its address, which has the key, to nobody.
  if (lws_add_http_common_headers(wsi, status, type, body.size(), &at, end) != 0 ||
      add("content-security-policy:",
          "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
          "img-src data: blob:; connect-src 'self' ws: wss:; base-uri 'none'; form-action "
          "'none'") ||
      add("referrer-policy:", "no-referrer") || add("x-content-type-options:", "nosniff") ||
      add("cache-control:", "no-store") ||
      lws_finalize_write_http_header(wsi, start, &at, end) != 0) {
    return 1;
  }
  return 0;
}

std::string refused_page(const std::string& reason) {
  return fmt::format(
      "<!doctype html><meta charset=utf-8><title>Blockscope</title><p "
      "style=\"font:16px sans-serif;max-width:40em;margin:3em auto\">{}</p>\n",
      reason);
}

Server::~Server() {
  for (auto& [id, session] : sessions_) {
    lws_sul_cancel(&session->retry.list);
    if (session->process > 0) leaving_.add(session->process);
  }
  lws_sul_cancel(&look_.list);
  if (context_ != nullptr) lws_context_destroy(context_);  // closes the sockets
  leaving_.wait();
}

bool Server::listen_on(int port) {
  // lws shares a port with other servers if it can; this one must be free.
  const int probe = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  if (::inet_pton(AF_INET, options_.listen.c_str(), &address.sin_addr) != 1) {
    ::close(probe);
    throw UsageError(
        fmt::format("--listen: expected an address such as 127.0.0.1 or 0.0.0.0, got "
                    "'{}'",
                    options_.listen));
  }
  const int on = 1;
  ::setsockopt(probe, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const bool free =
      ::bind(probe, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
      ::listen(probe, 1) == 0;
  const int problem = errno;
  ::close(probe);
  if (!free) {
    if (problem == EADDRINUSE) return false;
    throw Error(
        fmt::format("view --serve: can't listen on {}:{}: {}. HINT: choose another port "
                    "or --listen address",
                    options_.listen, port, std::strerror(problem)));
  }
  lws_context_creation_info info{};
  info.port = port;
  info.iface = options_.listen.c_str();
  info.protocols = protocols();
  info.vhost_name = "viewer";
  info.options = LWS_SERVER_OPTION_DISABLE_IPV6 | LWS_SERVER_OPTION_FAIL_UPON_UNABLE_TO_BIND;
  info.keepalive_timeout = 5;
  info.timeout_secs = 10;
  host_ = lws_create_vhost(context_, &info);
  return host_ != nullptr;
}

void Server::run() {
  rlimit descriptors{};
  if (::getrlimit(RLIMIT_NOFILE, &descriptors) == 0) {
    descriptors.rlim_cur = std::min(descriptors.rlim_max, kDescriptors);
    ::setrlimit(RLIMIT_NOFILE, &descriptors);
  }
  lws_set_log_level(
      LLL_ERR, [](int /*level*/, const char* line) { note("blockscope: view --serve: {}", line); });
  // A page that is gone without a word (a laptop that sleeps) is noticed after the second number.
  static const std::array<std::uint32_t, 1> kNoRetries = {0};
  static const lws_retry_bo_t kAlive = {kNoRetries.data(), 0, 0, 20, 40, 0};
  lws_context_creation_info info{};
  info.port = CONTEXT_PORT_NO_LISTEN;
  info.options = LWS_SERVER_OPTION_EXPLICIT_VHOSTS | LWS_SERVER_OPTION_DISABLE_IPV6;
  info.user = this;
  info.retry_and_idle_policy = &kAlive;
  info.max_http_header_pool = 4096;
  info.fd_limit_per_thread = static_cast<unsigned>(descriptors.rlim_cur);
  context_ = lws_create_context(&info);
  if (context_ == nullptr) throw Error("view --serve: the web server can't begin");
  int port = options_.port;
  if (port != 0 && !listen_on(port)) {
    throw Error(
        fmt::format("view --serve: port {} is in use on {}. HINT: choose another one, or "
                    "none: --serve alone takes a free one",
                    port, options_.listen));
  }
  for (int next = kFirstPort; port == 0; ++next) {
    if (next == kFirstPort + kPortsTried) {
      throw Error(fmt::format("view --serve: ports {} to {} are in use on {}. HINT: --serve PORT",
                              kFirstPort, next - 1, options_.listen));
    }
    if (listen_on(next)) port = next;
  }
  options_.ready(port);
  look_.owner = this;
  look_after();
  while (InterruptGuard::signal() == 0) lws_service(context_, 0);
}

/// Twice a second: ends viewers that were closed, and those whose page did not return. It also
/// limits how long a signal can go unnoticed.
void Server::look_after() {
  constexpr lws_usec_t kPeriod = 500000;
  constexpr auto kFarewell = std::chrono::seconds(5);  // for the page to be told
  leaving_.look();
  std::vector<Session*> ending;
  for (auto& [id, session] : sessions_) {
    int status = 0;
    if (session->process > 0 && ::waitpid(session->process, &status, WNOHANG) == session->process) {
      if (WIFSIGNALED(status)) {
        session->crash = fmt::format("The viewer ended with signal {}.", WTERMSIG(status));
        note("blockscope: view --serve: process {}: {}\n", session->process, session->crash);
      }
      session->process = -1;
      over(*session);
    }
    const auto now = Clock::now();
    const bool told = session->page == nullptr || now - session->ended > kFarewell;
    const bool forgotten = session->page == nullptr && now - session->left > kPatience;
    if ((session->over && told) || forgotten) ending.push_back(session.get());
  }
  for (Session* session : ending) end_session(*session);
  lws_sul_schedule(
      context_, 0, &look_.list,
      [](lws_sorted_usec_list_t* timer) { Timer::owner_of<Server>(timer).look_after(); }, kPeriod);
}

/// The viewer has ended; its page is told.
void Server::over(Session& session) {
  if (session.over) return;
  session.over = true;
  session.ended = Clock::now();
  if (session.page != nullptr) lws_callback_on_writable(session.page);
}

std::string Server::why_not(lws* wsi, bool websocket) const {
  const PageRequest request = {header_text(wsi, WSI_TOKEN_HOST), header_text(wsi, WSI_TOKEN_ORIGIN),
                               argument(wsi, "key")};
  const bool any_host = !is_loopback(options_.listen);
  return refusal(request, options_.secret, options_.hosts, any_host, websocket);
}

int Server::on_http(lws* wsi, lws_callback_reasons reason, void* in) {
  if (reason == LWS_CALLBACK_HTTP) {
    const std::string path = static_cast<const char*>(in);
    const std::string problem = why_not(wsi, false);
    const bool known = path == "/" || path.empty();
    const std::string body = !problem.empty() ? refused_page(problem)
                             : !known         ? refused_page("There is no such page.")
                                              : std::string(kPage);
    const unsigned status = !problem.empty() ? HTTP_STATUS_FORBIDDEN
                            : !known         ? HTTP_STATUS_NOT_FOUND
                                             : HTTP_STATUS_OK;
    if (answer(wsi, status, body, "text/html; charset=utf-8") != 0) return -1;
    auto* text = new std::string(LWS_PRE, '\0');
    *text += body;
    lws_set_opaque_user_data(wsi, text);
    lws_callback_on_writable(wsi);
    return 0;
  }
  auto* text = static_cast<std::string*>(lws_get_opaque_user_data(wsi));
  if (reason == LWS_CALLBACK_HTTP_WRITEABLE && text != nullptr) {
    const std::size_t length = text->size() - LWS_PRE;
    lws_write(wsi, reinterpret_cast<unsigned char*>(text->data()) + LWS_PRE, length,
              LWS_WRITE_HTTP_FINAL);
    lws_set_opaque_user_data(wsi, nullptr);
    delete text;
    return lws_http_transaction_completed(wsi) != 0 ? -1 : 0;
  }
  if (reason == LWS_CALLBACK_CLOSED_HTTP && text != nullptr) {
    lws_set_opaque_user_data(wsi, nullptr);
    delete text;
  }
  // A WebSocket that asks for no protocol of ours.
  if (reason == LWS_CALLBACK_FILTER_PROTOCOL_CONNECTION) return -1;
  return 0;
}

Session* Server::session_of_page(const lws* wsi) {
  for (auto& [id, session] : sessions_) {
    if (session->page == wsi) return session.get();
  }
  return nullptr;
}

Session* Server::session_of_child(const lws* wsi) {
  for (auto& [id, session] : sessions_) {
    if (session->child == wsi) return session.get();
  }
  return nullptr;
}

int Server::on_page(lws* wsi, lws_callback_reasons reason, void* in, std::size_t length) {
  if (reason == LWS_CALLBACK_FILTER_PROTOCOL_CONNECTION) {
    return why_not(wsi, true).empty() ? 0 : -1;
  }
  if (reason == LWS_CALLBACK_ESTABLISHED) return admit(wsi);
  if (const auto found = farewells_.find(wsi); found != farewells_.end()) {
    if (reason == LWS_CALLBACK_SERVER_WRITEABLE) return say(wsi, found->second);
    if (reason == LWS_CALLBACK_CLOSED) farewells_.erase(found);
    return 0;
  }
  Session* session = session_of_page(wsi);
  if (session == nullptr) return 0;
  if (reason == LWS_CALLBACK_RECEIVE) {
    return from_page(*session, wsi, static_cast<const char*>(in), length);
  }
  if (reason == LWS_CALLBACK_SERVER_WRITEABLE) return write_page(*session);
  if (reason == LWS_CALLBACK_CLOSED) detach(*session);
  return 0;
}

/// The page's session: the one that it had before its connection broke, or a new one.
int Server::admit(lws* wsi) {
  const std::string id = argument(wsi, "session");
  const auto found = sessions_.find(id);
  Session* session = nullptr;
  if (found != sessions_.end() && !found->second->over) {
    session = found->second.get();
    if (session->page != nullptr) {
      // Its connection is gone without a word, or the tab was duplicated.
      lws* old = session->page;
      detach(*session);
      dismiss(old, {kMoved,
                    "This viewer is shown by another page now. Reload this one for a viewer of its "
                    "own.",
                    true});
    }
  } else if (!make_room()) {
    return dismiss(wsi, {LWS_CLOSE_STATUS_POLICY_VIOLATION,
                         fmt::format("{} people are looking already. Close a page, and reload this "
                                     "one.",
                                     kMostSessions)});
  } else {
    const bool plain = id.size() == 32 && std::ranges::all_of(id, [](unsigned char letter) {
                         return std::isxdigit(letter) != 0;
                       });
    session = begin_session(plain && found == sessions_.end() ? id : random_secret());
  }
  if (session == nullptr) {
    return dismiss(wsi,
                   {LWS_CLOSE_STATUS_POLICY_VIOLATION, "The system can't begin another process."});
  }
  session->page = wsi;
  session->from_page.clear();
  tell(*session, LinkKind::attached, "");
  return 0;
}

/// Says why with the next two callbacks, and closes the page. Always 0, for callbacks.
int Server::dismiss(lws* wsi, Farewell farewell) {
  farewells_[wsi] = std::move(farewell);
  lws_rx_flow_control(wsi, 1);
  lws_callback_on_writable(wsi);
  return 0;
}

int Server::say(lws* wsi, Farewell& farewell) {
  if (!std::exchange(farewell.said, true)) {
    const nlohmann::json told = {{"text", farewell.text}, {"forget", farewell.forget}};
    std::string message(LWS_PRE, '\0');
    message += "x" + told.dump();
    lws_write(wsi, reinterpret_cast<unsigned char*>(message.data()) + LWS_PRE,
              message.size() - LWS_PRE, LWS_WRITE_BINARY);
    lws_callback_on_writable(wsi);
    return 0;
  }
  lws_close_reason(wsi, farewell.status, reinterpret_cast<unsigned char*>(farewell.text.data()),
                   std::min<std::size_t>(farewell.text.size(), 120));
  return -1;
}

/// Where all places are taken, the viewer that was left longest ago gives way.
bool Server::make_room() {
  if (sessions_.size() < kMostSessions) return true;
  Session* oldest = nullptr;
  for (auto& [id, session] : sessions_) {
    if (session->page != nullptr) continue;
    if (oldest == nullptr || session->left < oldest->left) oldest = session.get();
  }
  if (oldest != nullptr) end_session(*oldest);
  return oldest != nullptr;
}

Session* Server::begin_session(const std::string& id) {
  const ViewerProcess begun = begin_viewer(options_.view, static_cast<int>(kDescriptors));
  if (begun.process < 0) return nullptr;
  auto session = std::make_unique<Session>();
  session->retry.owner = session.get();
  session->id = id;
  session->process = begun.process;
  lws_sock_file_fd_type descriptor;
  descriptor.filefd = begun.socket;
  session->child =
      lws_adopt_descriptor_vhost(host_, LWS_ADOPT_RAW_FILE_DESC, descriptor, "viewer", nullptr);
  if (session->child == nullptr) {
    ::close(begun.socket);
    leaving_.add(begun.process);
    return nullptr;
  }
  return (sessions_[id] = std::move(session)).get();
}

void Server::detach(Session& session) {
  session.page = nullptr;
  session.left = Clock::now();
  session.forward = false;
  session.piece.clear();
  if (session.child != nullptr) {
    lws_rx_flow_control(session.child, 1);
    tell(session, LinkKind::detached, "");
  }
}

void Server::end_session(Session& session) {
  if (session.page != nullptr) {
    lws_set_timeout(session.page, PENDING_TIMEOUT_USER_REASON_BASE, LWS_TO_KILL_ASYNC);
    session.page = nullptr;
  }
  if (session.child != nullptr) {
    lws_set_timeout(session.child, PENDING_TIMEOUT_USER_REASON_BASE, LWS_TO_KILL_ASYNC);
  }
  if (session.process > 0) leaving_.add(session.process);
  lws_sul_cancel(&session.retry.list);
  sessions_.erase(std::string(session.id));
}

void Server::tell(Session& session, LinkKind kind, std::string_view payload) {
  if (session.child == nullptr) return;
  session.to_child += link_header(kind, payload.size());
  session.to_child += payload;
  lws_callback_on_writable(session.child);
  // A busy viewer: the browser waits, and its memory holds what it wants to send.
  if (session.to_child.size() > kMostWaiting && session.page != nullptr) {
    lws_rx_flow_control(session.page, 0);
  }
}

int Server::from_page(Session& session, lws* wsi, const char* data, std::size_t length) {
  if (lws_is_first_fragment(wsi) != 0) {
    session.from_page.clear();
    session.from_page_is_file = lws_frame_is_binary(wsi) != 0;
  }
  const std::size_t most = session.from_page_is_file ? kMostFileBytes : kMostEventBytes;
  if (session.from_page.size() + length > most) {
    detach(session);
    return dismiss(wsi, {LWS_CLOSE_STATUS_POLICY_VIOLATION,
                         fmt::format("A message has more than {} bytes.", most)});
  }
  session.from_page.append(data, length);
  if (lws_is_final_fragment(wsi) == 0 || lws_remaining_packet_payload(wsi) != 0) return 0;
  tell(session, session.from_page_is_file ? LinkKind::file : LinkKind::events, session.from_page);
  std::string().swap(session.from_page);
  return 0;
}

int Server::on_child(lws* wsi, lws_callback_reasons reason) {
  Session* session = session_of_child(wsi);
  if (session == nullptr) return 0;
  if (reason == LWS_CALLBACK_RAW_RX_FILE) return read_child(*session);
  if (reason == LWS_CALLBACK_RAW_WRITEABLE_FILE) return write_child(*session);
  if (reason == LWS_CALLBACK_RAW_CLOSE_FILE) {
    session->child = nullptr;
    over(*session);
  }
  return 0;
}

int Server::write_child(Session& session) {
  while (!session.to_child.empty()) {
    const ssize_t count =
        ::send(lws_get_socket_fd(session.child), session.to_child.data(),
               std::min(session.to_child.size(), kPiece), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
      // Not lws_callback_on_writable(): lws forgets what is asked for inside this callback.
      constexpr lws_usec_t kPause = 1000;
      lws_sul_schedule(
          context_, 0, &session.retry.list,
          [](lws_sorted_usec_list_t* timer) {
            const Session& waiting = Timer::owner_of<Session>(timer);
            if (waiting.child != nullptr) lws_callback_on_writable(waiting.child);
          },
          kPause);
      break;
    }
    if (count <= 0) return -1;
    session.to_child.erase(0, static_cast<std::size_t>(count));
  }
  if (session.to_child.empty()) std::string().swap(session.to_child);  // a large file was in it
  if (session.to_child.size() < kMostWaiting / 2 && session.page != nullptr) {
    lws_rx_flow_control(session.page, 1);
  }
  return 0;
}

/// Reads one piece of a message. The next one is read when the page has taken it.
int Server::read_child(Session& session) {
  const int socket = lws_get_socket_fd(session.child);
  const auto take = [&](char* to, std::size_t most) {
    const ssize_t count = ::recv(socket, to, most, MSG_DONTWAIT);
    return count < 0 && (errno == EAGAIN || errno == EINTR) ? -2 : count == 0 ? -1 : count;
  };
  if (!session.piece.empty()) {  // an event that was already on its way
    lws_rx_flow_control(session.child, 0);
    return 0;
  }
  if (session.message_left == 0) {
    std::array<char, kLinkHeader> bytes{};
    const ssize_t count = take(bytes.data(), kLinkHeader - session.header.size());
    if (count < 0) return count == -2 ? 0 : -1;
    session.header.append(bytes.data(), static_cast<std::size_t>(count));
    if (session.header.size() < kLinkHeader) return 0;
    session.message_left = link_payload_bytes(session.header);
    session.message_begins = true;
    const auto kind = static_cast<LinkKind>(session.header.back());
    session.forward = kind == LinkKind::message && session.page != nullptr;
    session.header.clear();
    session.refusing = kind == LinkKind::refused;
    session.refused.clear();
    return 0;
  }
  std::string piece(std::min(session.message_left, kPiece), '\0');
  const ssize_t count = take(piece.data(), piece.size());
  if (count < 0) return count == -2 ? 0 : -1;
  piece.resize(static_cast<std::size_t>(count));
  session.message_left -= piece.size();
  if (session.refusing) {
    // No page of ours sends this. Whoever does may come back with a page of ours.
    if (session.refused.size() < kPiece) session.refused += piece;
    if (session.message_left > 0) return 0;
    note("blockscope: view --serve: {}. The connection is closed.\n", session.refused);
    if (session.page != nullptr) {
      lws_set_timeout(session.page, PENDING_TIMEOUT_USER_REASON_BASE, LWS_TO_KILL_ASYNC);
    }
    return 0;
  }
  if (!session.forward || session.page == nullptr) return 0;
  session.piece = std::move(piece);
  lws_rx_flow_control(session.child, 0);
  lws_callback_on_writable(session.page);
  return 0;
}

int Server::write_page(Session& session) {
  if (session.over) {
    lws* page = std::exchange(session.page, nullptr);
    return dismiss(page, {LWS_CLOSE_STATUS_GOINGAWAY,
                          (session.crash.empty() ? "The viewer is closed." : session.crash) +
                              " Reload the page to open it again."});
  }
  if (session.piece.empty()) return 0;
  std::string buffer(LWS_PRE, '\0');
  buffer += std::exchange(session.piece, {});
  const int kind = lws_write_ws_flags(LWS_WRITE_BINARY, session.message_begins ? 1 : 0,
                                      session.message_left == 0 ? 1 : 0);
  session.message_begins = false;
  const std::size_t length = buffer.size() - LWS_PRE;
  const int written =
      lws_write(session.page, reinterpret_cast<unsigned char*>(buffer.data()) + LWS_PRE, length,
                static_cast<lws_write_protocol>(kind));
  if (written < static_cast<int>(length)) return -1;
  if (session.child != nullptr) lws_rx_flow_control(session.child, 1);
  return 0;
}

}  // namespace

std::string random_secret() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw Error("view --serve: the system gives no random bytes");
  }
  std::string secret;
  for (const unsigned char byte : bytes) secret += fmt::format("{:02x}", byte);
  return secret;
}

void serve(const ServeOptions& options) { Server(options).run(); }

}  // namespace blockscope
