// Progress of long work on stderr: a bar on a terminal, a plain line every few seconds elsewhere,
// nothing with --quiet.
#pragma once

#include <chrono>
#include <string>

namespace blockscope {

class Progress {
 public:
  explicit Progress(bool quiet);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `done` in [0, 1]; `text` says what the numbers are. Draws at most ten times a second on a
  /// terminal, every five seconds elsewhere.
  void update(double done, const std::string& text);
  /// Clears the bar, so that other output starts on an empty line.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  bool quiet_;
  bool terminal_;
  bool drawn_ = false;
  Clock::time_point begin_;
  Clock::time_point last_;
};

/// "1.2 MB", "3.4 GB".
std::string format_bytes(double bytes);
/// "12 s", "3 min 05 s", "2 h 10 min".
std::string format_seconds(double seconds);

}  // namespace blockscope
