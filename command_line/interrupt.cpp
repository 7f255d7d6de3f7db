#include "command_line/interrupt.h"

#include <array>
#include <csignal>

#include "decode_record/error.h"

namespace blockscope {
namespace {

constexpr std::array<int, 4> kSignals{SIGINT, SIGTERM, SIGUSR1, SIGHUP};
volatile std::sig_atomic_t received = 0;  // the one thing a handler may touch

void handle(int signal) {
  if (received != 0 && signal == SIGINT) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);  // blocked in here: ends the process when this handler returns
  }
  received = signal;
}

}  // namespace

InterruptGuard::InterruptGuard() {
  received = 0;
  for (const int signal : kSignals) {
    // nohup: the terminal may go, the run stays.
    if (std::signal(signal, handle) == SIG_IGN && signal == SIGHUP) std::signal(signal, SIG_IGN);
  }
}

InterruptGuard::~InterruptGuard() {
  for (const int signal : kSignals) {
    if (std::signal(signal, SIG_DFL) == SIG_IGN && signal == SIGHUP) std::signal(signal, SIG_IGN);
  }
}

int InterruptGuard::signal() { return received; }

void InterruptGuard::check(const std::string& outcome) {
  if (received != 0) throw InterruptedError(outcome);
}

}  // namespace blockscope
