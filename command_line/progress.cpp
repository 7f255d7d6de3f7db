#include "command_line/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "command_line/host.h"
#include "command_line/printable.h"
#include "command_line/standard_streams.h"

namespace blockscope {

namespace {

/// A terminal that knows how to erase a line; Emacs' shell and many logs say TERM=dumb.
bool can_redraw() {
  const char* terminal = std::getenv("TERM");
  return isatty(STDERR_FILENO) == 1 &&
         (terminal == nullptr || std::string_view(terminal) != "dumb");
}

}  // namespace

Progress::Progress(bool quiet)
    : quiet_(quiet), terminal_(can_redraw()), begin_(Clock::now()), last_(begin_) {}

Progress::~Progress() { clear(); }

void Progress::update(double done, const std::string& text) {
  CommandHost* const host = command_host();  // decides itself what it shows
  if (quiet_ && host == nullptr) return;
  const auto now = Clock::now();
  const auto interval = terminal_ || host != nullptr ? std::chrono::milliseconds(100)
                                                               : std::chrono::milliseconds(5000);
  if (now - last_ < interval) return;
  last_ = now;
  done = std::clamp(done, 0.0, 1.0);
  if (host != nullptr) return host->progress(done, printable(text));
  const double elapsed = std::chrono::duration<double>(now - begin_).count();
  const std::string left =
      done > 0.0 ? format_seconds(elapsed * (1.0 - done) / done) + " left" : "estimating";
  if (terminal_) {
    constexpr int kWidth = 24;
    const int filled = static_cast<int>(done * kWidth);
    draw_text(fmt::format("\r\x1b[K[{:=<{}}{:<{}}] {:3.0f}% {} · {}", "", filled, "",
                          kWidth - filled, done * 100.0, printable(text), left));
  } else {
    note("{:3.0f}% {} · {}\n", done * 100.0, text, left);
  }
  drawn_ = true;
}

void Progress::clear() {
  if (drawn_ && terminal_) draw_text("\r\x1b[K");
  drawn_ = false;
}

std::string format_bytes(double bytes) {
  if (bytes < 1e3) return fmt::format("{:.0f} B", bytes);
  if (bytes < 1e6) return fmt::format("{:.1f} kB", bytes / 1e3);
  if (bytes < 1e9) return fmt::format("{:.1f} MB", bytes / 1e6);
  return fmt::format("{:.2f} GB", bytes / 1e9);
}

std::string format_seconds(double seconds) {
  const int64_t whole = static_cast<int64_t>(seconds + 0.5);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02d} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02d} min", whole / 3600, whole % 3600 / 60);
}

}  // namespace blockscope
