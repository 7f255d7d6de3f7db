#include "command_line/standard_streams.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "command_line/host.h"
#include "command_line/printable.h"

namespace blockscope {
namespace {

int lost_errno = 0;  // why a write to the standard output failed; stdio keeps only that it did

}  // namespace

void take_standard_descriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) != -1 || errno != EBADF) continue;
    // open() takes the lowest free descriptor, which is this one. 0 and 1 get the opposite mode, so
    // that reading from 0 and writing to 1 still fail.
    const int flags = descriptor == STDIN_FILENO    ? O_WRONLY
                      : descriptor == STDOUT_FILENO ? O_RDONLY
                                                    : O_WRONLY;
    if (::open("/dev/null", flags) != descriptor) ::_exit(1);  // no place to say why
  }
  // A broken pipe and a file that grows above `ulimit -f` become errors of the call. By default
  // they would end the process.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

void note_text(const std::string& text) { draw_text(printable(text)); }

void draw_text(const std::string& text) {
  if (CommandHost* const host = command_host()) return host->note(text);
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::clearerr(stderr);
}

void say_text(const std::string& text) {
  if (CommandHost* const host = command_host()) return host->say(text);
  const std::string shown = printable(text);
  errno = 0;
  if (std::fwrite(shown.data(), 1, shown.size(), stdout) < shown.size()) lost_errno = errno;
}

PrintedState flush_standard_output() {
  errno = 0;
  if (std::fflush(stdout) != 0) lost_errno = errno;
  if (std::ferror(stdout) == 0 && lost_errno == 0) return {};
  // stdio keeps only that an earlier write failed, not why: another write asks for the reason.
  if (lost_errno == 0) {
    pollfd output{STDOUT_FILENO, POLLOUT, 0};
    const bool broken = ::poll(&output, 1, 0) > 0 && (output.revents & POLLERR) != 0;
    const char nothing = '\0';
    if (broken) {
      lost_errno = EPIPE;
    } else if (::write(STDOUT_FILENO, &nothing, 0) < 0) {
      lost_errno = errno;
    }
  }
  return {false, lost_errno == EPIPE,
          lost_errno == 0 ? "a write failed" : std::strerror(lost_errno)};
}

}  // namespace blockscope
