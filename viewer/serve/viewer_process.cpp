#include "viewer/serve/viewer_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <exception>

#include "command_line/standard_streams.h"

namespace blockscope {

ViewerProcess begin_viewer(const std::function<void(int)>& view, int descriptors) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) return {};
  const pid_t process = ::fork();
  if (process < 0) {
    ::close(ends[0]);
    ::close(ends[1]);
    return {};
  }
  if (process == 0) {
    // The caller has one thread, so the copy of its memory is whole. Nothing of the server's may
    // stay open in it: a page's connection must end when the server ends it. The viewer ends when
    // its socket does, whatever ends the server, and takes its temporary files with it.
    for (const int sign : {SIGINT, SIGHUP, SIGUSR1}) ::signal(sign, SIG_IGN);
    ::signal(SIGTERM, SIG_DFL);
    constexpr int kMine = 3;
    if (ends[1] != kMine) ::dup2(ends[1], kMine);
    ::fcntl(kMine, F_SETFD, FD_CLOEXEC);
    for (int other = kMine + 1; other < descriptors; ++other) ::close(other);
    try {
      view(kMine);
    } catch (const std::exception& error) {
      note("blockscope: view --serve: {}\n", error.what());
    }
    ::_exit(0);
  }
  ::close(ends[1]);
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return {process, ends[0]};
}

void LeavingProcesses::add(pid_t process) {
  leaving_.push_back({process, std::chrono::steady_clock::now()});
}

void LeavingProcesses::look() {
  constexpr auto kGrace = std::chrono::seconds(2);
  constexpr auto kLast = std::chrono::seconds(3);
  std::erase_if(leaving_, [&](const Leaving& one) {
    const auto passed = std::chrono::steady_clock::now() - one.since;
    if (passed > kGrace) ::kill(one.process, SIGKILL);
    return ::waitpid(one.process, nullptr, WNOHANG) != 0 || passed > kLast;
  });
}

void LeavingProcesses::wait() {
  for (look(); !leaving_.empty(); look()) ::usleep(10000);
}

}  // namespace blockscope
