#include "command_line/interrupt.h"

#include <unistd.h>

#include <array>
#include <csignal>
#include <string_view>

#include "command_line/host.h"
#include "decode_record/base/error.h"

namespace blockscope {
namespace {

using Handler = void (*)(int);

constexpr std::array kSignals{SIGINT, SIGTERM, SIGUSR1, SIGHUP};
volatile std::sig_atomic_t received = 0;  // the only variable that a handler may touch

/// Makes only calls that a handler may make: no buffer is flushed, no destructor runs.
[[noreturn]] void end_at_once(int signal, std::string_view message) {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, message.data(), message.size());
  ::_exit(128 + signal);
}

void end_before_outputs(int signal) {
  end_at_once(signal, "blockscope: stopped by a signal: nothing was written\n");
}

void end_after_outputs(int signal) { end_at_once(signal, "blockscope: stopped by a signal\n"); }

void note_signal(int signal) {
  if (received != 0 && signal == SIGINT) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);  // blocked inside the handler: ends the process when the handler returns
  }
  received = signal;
}

/// Sets the handler and returns the earlier one. Under nohup SIGHUP stays ignored: the run goes on
/// without its terminal.
Handler handle(int signal, Handler handler) {
  const Handler before = std::signal(signal, handler);
  if (before == SIG_IGN && signal == SIGHUP) std::signal(signal, SIG_IGN);
  return before;
}

}  // namespace

void end_on_signals() {
  for (const int signal : kSignals) handle(signal, end_before_outputs);
}

InterruptGuard::InterruptGuard() : hosted_(command_host() != nullptr) {
  if (hosted_) return;
  received = 0;
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    // Each module has its own copy of this file, so the earlier handler is the binary's.
    ended_before_[i] = handle(kSignals[i], note_signal) != SIG_DFL;
  }
}

InterruptGuard::~InterruptGuard() {
  if (hosted_) return;
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    handle(kSignals[i], ended_before_[i] ? end_after_outputs : SIG_DFL);
  }
}

int InterruptGuard::signal() {
  if (CommandHost* const host = command_host()) return host->stops() ? SIGINT : 0;
  return received;
}

void InterruptGuard::check(const std::string& outcome) {
  if (signal() != 0) throw InterruptedError(outcome);
}

}  // namespace blockscope
