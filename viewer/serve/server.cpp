// Longer than other files: lws calls one set of functions for all that happens to a connection.
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
#include "viewer/serve/http_reply.h"
#include "viewer/serve/page_access.h"
#include "viewer/serve/session.h"
#include "viewer/serve/viewer_process.h"

namespace blockscope {

extern const char* const kPage;  // page.html

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostSessions = 16;            // people at once; each has a process
constexpr auto kPatience = std::chrono::minutes(5);  // a page that lost its connection may return
constexpr int kPortsTried = 100;
constexpr rlim_t kDescriptors = 8192;
constexpr const char* kProtocol = "blockscope";

/// Why a page is closed: as a message, because proxies keep close codes to themselves.
struct Farewell {
  lws_close_status status;
  std::string text;
  bool forget = false;  ///< the page's next viewer is another one
  bool said = false;    ///< also where the message would fall into another one
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
  void end_session(Session& session);
  void over(Session& session);
  int from_page(Session& session, lws* wsi, const char* data, std::size_t length);
  int to_page(Session& session);
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

constexpr auto kMoved = static_cast<lws_close_status>(4001);

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
    if (begin_reply(wsi, status, body) != 0) return -1;
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
  if (reason == LWS_CALLBACK_SERVER_WRITEABLE) return to_page(*session);
  if (reason == LWS_CALLBACK_CLOSED) session->detach();
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
      const bool torn = session->in_a_message();
      session->detach();
      dismiss(old, {kMoved,
                    "This viewer is shown by another page now. Reload this one for a viewer of its "
                    "own.",
                    true, torn});
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
  session->tell(LinkKind::attached, "");
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

int Server::from_page(Session& session, lws* wsi, const char* data, std::size_t length) {
  if (session.take(wsi, data, length)) return 0;
  session.detach();
  return dismiss(wsi, {LWS_CLOSE_STATUS_POLICY_VIOLATION, "A message is too long."});
}

int Server::to_page(Session& session) {
  if (!session.over) return session.write_page();
  const bool torn = session.in_a_message();
  lws* page = std::exchange(session.page, nullptr);
  return dismiss(page, {LWS_CLOSE_STATUS_GOINGAWAY,
                        (session.crash.empty() ? "The viewer is closed." : session.crash) +
                            " Reload the page to open it again.",
                        false, torn});
}

int Server::on_child(lws* wsi, lws_callback_reasons reason) {
  Session* session = session_of_child(wsi);
  if (session == nullptr) return 0;
  if (reason == LWS_CALLBACK_RAW_RX_FILE) return session->read_child();
  if (reason == LWS_CALLBACK_RAW_WRITEABLE_FILE) return session->write_child();
  if (reason == LWS_CALLBACK_RAW_CLOSE_FILE) {
    session->child = nullptr;
    over(*session);
  }
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
