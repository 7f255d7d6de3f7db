#include "probe/commands/bench_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "command_line/progress.h"

namespace blockscope {
namespace {

/// The spread is shown too: on a busy machine a median alone means nothing.
std::string overhead_text(const Overhead& overhead, size_t runs) {
  if (runs == 1) return fmt::format("{:+.1f}% (1 run)", overhead.median * 100.0);
  return fmt::format("{:+.1f}% [{:+.1f}, {:+.1f}]", overhead.median * 100.0, overhead.least * 100.0,
                     overhead.most * 100.0);
}

/// Mean milliseconds of `count` passes; "n/a" for none.
std::string per_pass(double seconds, int64_t count) {
  if (count == 0) return "n/a";
  return fmt::format("{:.3f}", seconds * 1e3 / static_cast<double>(count));
}

}  // namespace

double total(const Timing& timing) { return timing.blocks + timing.finish; }

Overhead overhead_of(const std::vector<Timing>& level, const std::vector<Timing>& base) {
  std::vector<double> shares;
  for (size_t run = 0; run < level.size(); ++run) {
    shares.push_back(total(level[run]) / total(base[run]) - 1.0);
  }
  std::sort(shares.begin(), shares.end());
  return {shares[shares.size() / 2], shares.front(), shares.back()};
}

std::string timing_header() {
  return fmt::format("{:<11}{:>10}{:>10}{:>12}{:>12}{:>26}{:>12}{:>10}", "level", "prefill",
                     "tokens/s", "ms/denoise", "ms/pass", "overhead [least, most]", "trace",
                     "write");
}

std::string timing_line(const std::string& level, const Timing& timing, const Overhead& overhead,
                        std::size_t runs) {
  const double seconds = total(timing);
  const std::string speed =
      timing.tokens == 0 ? "n/a"
                         : fmt::format("{:.1f}", static_cast<double>(timing.tokens) / seconds);
  return fmt::format("{:<11}{:>8.3f} s{:>10}{:>12}{:>12}{:>26}{:>12}{:>8.0f}/s", level,
                     timing.prefill, speed, per_pass(seconds, timing.denoising_passes),
                     per_pass(seconds, timing.block_passes), overhead_text(overhead, runs),
                     format_bytes(static_cast<double>(timing.file_bytes)),
                     static_cast<double>(timing.file_bytes) / 1e6 / seconds);
}

}  // namespace blockscope
