// What `blockscope.compare` measured (docs/python.md): a PyTorch model's own loop, exact and with a
// policy. Only what reports and studies show is read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace blockscope {

struct LoopComparison {
  struct StepError {
    std::int64_t step = 0;
    double relative_l2 = 0.0;  ///< NaN: not finite
  };
  struct FramePair {  ///< PNG files as base64
    std::int64_t prompt = 0, frame = 0;
    std::string exact, policy;
  };
  struct Score {
    std::string metric;
    double exact = 0.0, policy = 0.0;  ///< NaN: not finite
    std::int64_t count = 0;
  };

  std::string model, label;  ///< of the model, of the policy
  std::int64_t prompts = 0, repetitions = 0;
  double exact_seconds = 0.0, policy_seconds = 0.0;  ///< medians of all prompts together
  std::int64_t key_rows = 0, key_rows_read = 0;      ///< external keys of the policy's free runs
  std::optional<Score> score;
  std::optional<double> output_difference;  ///< relative L2 of the loops' outputs
  std::optional<double> error_reused;  ///< relative L2 of attention where approximated; NaN: not
                                       ///< finite
  std::vector<StepError> by_step;      ///< over all heads, under replay; may be empty
  std::vector<FramePair> frames;
};

/// Throws TrajectoryError that names the file, the member, and what was expected and found.
LoopComparison read_loop_comparison(const std::string& path);

}  // namespace blockscope
