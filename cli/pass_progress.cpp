#include "cli/pass_progress.h"

#include <fmt/format.h>
#include <unistd.h>

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
              fmt::format("{} of {} rows, {:.0f} rows/s, {}/s", done, total, rate,
                          format_bytes(rate * row_bytes_)));
  return InterruptGuard::signal() == 0;
}

}  // namespace blockscope
