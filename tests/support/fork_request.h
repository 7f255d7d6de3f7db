// What fork_client sends to fork_server for a command: a head, the descriptors, then folder,
// arguments and environment as texts that end with a zero byte. Answer: the status of waitpid(), or
// kStartYourself.
#pragma once

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace blockscope::test {

inline constexpr int kStartYourself = -1;
inline constexpr int kLimits = RLIM_NLIMITS;

struct ForkHead {
  std::uint64_t bytes = 0;  // of the texts
  std::uint64_t arguments = 0;
  std::uint32_t umask = 0;
  std::uint32_t open = 0;  // bit fd: descriptor fd (0 to 2) is open, and sent
  std::array<rlimit, kLimits> limits{};
};

struct ForkRequest {
  ForkHead head;
  std::array<int, 3> descriptors{-1, -1, -1};
  std::string folder;
  std::vector<std::string> arguments, environment;
};

inline sockaddr_un address_of(const char* path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path, sizeof(address.sun_path) - 1);
  return address;
}

inline int listen_at(const char* path) {
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_un address = address_of(path);
  if (bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    std::exit(1);
  if (listen(listener, 64) != 0) std::exit(1);
  return listener;
}

inline ForkRequest receive_request(int client) {
  ForkRequest request;
  std::array<char, CMSG_SPACE(3 * sizeof(int))> control{};
  iovec part{&request.head, sizeof(request.head)};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  if (recvmsg(client, &message, MSG_WAITALL) != sizeof(request.head)) _exit(1);
  std::array<int, 3> sent{};
  if (const cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr) {
    std::memcpy(sent.data(), CMSG_DATA(header), header->cmsg_len - CMSG_LEN(0));
  }
  std::size_t next = 0;
  for (std::size_t fd = 0; fd < 3; ++fd) {
    if ((request.head.open >> fd & 1U) != 0) request.descriptors[fd] = sent[next++];
  }
  std::string texts(request.head.bytes, '\0');
  for (std::size_t at = 0; at < texts.size();) {
    const auto got = read(client, texts.data() + at, texts.size() - at);
    if (got <= 0) _exit(1);
    at += static_cast<std::size_t>(got);
  }
  std::vector<std::string> all;
  for (std::size_t at = 0; at < texts.size(); at += all.back().size() + 1)
    all.emplace_back(texts.c_str() + at);
  request.folder = all.at(0);
  const auto middle = all.begin() + 1 + static_cast<std::ptrdiff_t>(request.head.arguments);
  request.arguments.assign(all.begin() + 1, middle);
  request.environment.assign(middle, all.end());
  return request;
}

}  // namespace blockscope::test
