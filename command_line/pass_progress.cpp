#include "command_line/pass_progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

namespace blockscope {

PassProgress::PassProgress(bool quiet, std::size_t row_bytes)
    : bar_(quiet || isatty(STDERR_FILENO) == 0), row_bytes_(static_cast<double>(row_bytes)) {}

std::function<bool(std::int64_t, std::int64_t)> PassProgress::callback() {
  return [this](std::int64_t done, std::int64_t total) { return update(done, total); };
}

bool PassProgress::update(std::int64_t done, std::int64_t total) {
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  const auto rows = static_cast<double>(done);
  const double rate = seconds > 0.0 ? rows / seconds : 0.0;
  bar_.update(total > 0 ? rows / static_cast<double>(total) : 1.0,
              fmt::format("{} of {} rows, {:.0f} rows/s{}", done, total, rate,
                          row_bytes_ > 0.0 ? ", " + format_bytes(rate * row_bytes_) + "/s" : ""));
  InterruptGuard::check();
  return true;
}

void PassProgress::show(std::size_t done, std::size_t total, const std::string& text) {
  bar_.update(static_cast<double>(done) / static_cast<double>(std::max<std::size_t>(total, 1)),
              text);
  InterruptGuard::check();
}

}  // namespace blockscope
