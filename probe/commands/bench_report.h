// What `bench` measured at one recorder level, and the table line that it prints.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace blockscope {

/// Seconds and counts of one decoded batch.
struct Timing {
  double prefill = 0.0;
  double blocks = 0.0;     // denoising and commit passes, recorder included
  double finish = 0.0;     // from the last pass until the trace is closed
  double forward = 0.0;    // part of `blocks`: from tokens to logits, attention included
  double attention = 0.0;  // part of `forward`
  double deciding = 0.0;   // part of `blocks`: from logits to tokens
  int64_t block_passes = 0;
  int64_t denoising_passes = 0;
  int64_t tokens = 0;
  int64_t file_bytes = 0;
  int64_t recorder_waits = 0;  // times that decoding on a device waited for the recorder
};

/// Seconds without the prefill.
double total(const Timing& timing);

/// What a level adds to the time of a base level, as shares of that time. Run i of the level is
/// compared with run i of the base.
struct Overhead {
  double median = 0.0, least = 0.0, most = 0.0;
};
Overhead overhead_of(const std::vector<Timing>& level, const std::vector<Timing>& base);

/// The table's header, and the line of the median run of `runs`. "n/a" if nothing was decided or no
/// pass ran.
std::string timing_header();
std::string timing_line(const std::string& level, const Timing& timing, const Overhead& overhead,
                        std::size_t runs);

}  // namespace blockscope
