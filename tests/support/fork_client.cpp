// Replaces the `blockscope` binary in tests: sends the command to the fork_server at
// BLOCKSCOPE_FORK_SOCKET, passes signals on and ends as the command did. Starts
// BLOCKSCOPE_FORK_BINARY itself where the server can't do it.
#include <fcntl.h>
#include <sys/stat.h>

#include <sys/wait.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>

#include "tests/support/fork_request.h"

extern char** environ;

namespace {

using namespace blockscope::test;

int server = -1;

void pass_on(int number) {
  const auto byte = static_cast<unsigned char>(number);
  [[maybe_unused]] const auto sent = write(server, &byte, 1);
}

bool connect_to(const char* path) {
  server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_un address = address_of(path);
  return server > 2 &&
         connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

bool send_command(int argc, char** argv) {
  std::array<char, PATH_MAX> folder{};
  if (getcwd(folder.data(), folder.size()) == nullptr) return false;
  std::string texts(folder.data());
  texts += '\0';
  for (int i = 0; i < argc; ++i) (texts += argv[i]) += '\0';
  for (char** variable = environ; *variable != nullptr; ++variable) (texts += *variable) += '\0';
  ForkHead head;
  head.bytes = texts.size();
  head.arguments = static_cast<std::uint64_t>(argc);
  head.umask = umask(0);
  umask(head.umask);
  for (int i = 0; i < kLimits; ++i)
    getrlimit(static_cast<__rlimit_resource>(i), &head.limits[static_cast<std::size_t>(i)]);
  std::vector<int> open;
  for (int fd = 0; fd < 3; ++fd) {
    if (fcntl(fd, F_GETFD) < 0) continue;
    head.open |= 1U << fd;
    open.push_back(fd);
  }
  std::array<char, CMSG_SPACE(3 * sizeof(int))> control{};
  iovec part{&head, sizeof(head)};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!open.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(open.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(open.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), open.data(), open.size() * sizeof(int));
  }
  if (sendmsg(server, &message, MSG_NOSIGNAL) != sizeof(head)) return false;
  for (std::size_t at = 0; at < texts.size();) {
    const auto sent = send(server, texts.data() + at, texts.size() - at, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += static_cast<std::size_t>(sent);
  }
  return true;
}

int answer() {
  int status = 0;
  ssize_t got = 0;
  while ((got = recv(server, &status, sizeof(status), MSG_WAITALL)) < 0 && errno == EINTR) {
  }
  if (got == sizeof(status)) return status;
  std::fprintf(stderr, "fork_client: the fork server is gone\n");
  std::_Exit(125);
}

}  // namespace

int main(int argc, char** argv) {
  const char* binary = std::getenv("BLOCKSCOPE_FORK_BINARY");
  const char* path = std::getenv("BLOCKSCOPE_FORK_SOCKET");
  if (binary == nullptr || path == nullptr) return 125;
  // The descriptor of the connection must be none that the command is to see closed.
  if (connect_to(path)) {
    for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2}) {
      struct sigaction before {};
      sigaction(number, nullptr, &before);
      if (before.sa_handler != SIG_IGN) signal(number, pass_on);
    }
    if (send_command(argc, argv)) {
      const int status = answer();
      if (WIFEXITED(status) && status != kStartYourself) std::_Exit(WEXITSTATUS(status));
      if (status != kStartYourself) {
        signal(WTERMSIG(status), SIG_DFL);
        std::raise(WTERMSIG(status));
      }
    }
    for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2})
      signal(number, SIG_DFL);
  }
  execv(binary, argv);
  std::perror("fork_client");
  return 127;
}
