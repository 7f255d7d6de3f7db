#include "probe/strategies/canvas.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "decode_record/base/error.h"
#include "probe/strategies/strategy_table.h"

namespace blockscope {
namespace {

constexpr int64_t kUsualSteps = 48;

/// The positions of lowest entropy while the sum of the smaller entropies is within the bound.
std::vector<int64_t> accepted(StrategyStep& step) {
  const std::vector<float>& entropy = step.prediction.entropy;
  std::stable_sort(step.order.begin(), step.order.end(), [&](int64_t a, int64_t b) {
    return entropy[static_cast<size_t>(a)] < entropy[static_cast<size_t>(b)];
  });
  float smaller = 0.0F;  // float32, as in the official code
  size_t count = 0;
  for (const int64_t p : step.order) {
    if (!(smaller <= static_cast<float>(step.options.entropy_bound))) break;  // also of NaN
    smaller += entropy[static_cast<size_t>(p)];
    ++count;
  }
  return step.first(count);
}

}  // namespace

double canvas_temperature(const UnmaskingOptions& options, int64_t step) {
  const auto steps = static_cast<double>(options.denoising_steps);
  const double left = (steps - static_cast<double>(step - 1)) / steps;
  return options.t_min + (options.t_max - options.t_min) * left;
}

bool canvas_settled(const UnmaskingOptions& options, const BlockPrediction& prediction,
                    CanvasMemory& memory) {
  const auto wanted = static_cast<size_t>(options.stable_steps);
  const bool stable =
      memory.best.size() >= wanted &&
      std::ranges::all_of(memory.best, [&](const auto& best) { return best == prediction.top1; });
  memory.best.push_back(prediction.top1);
  if (memory.best.size() > wanted) memory.best.erase(memory.best.begin());
  const double sum = std::accumulate(prediction.entropy.begin(), prediction.entropy.end(), 0.0);
  return stable && sum / static_cast<double>(prediction.entropy.size()) < options.stop_entropy;
}

StrategyEntry canvas_entry() {
  StrategyEntry entry;
  entry.name = kCanvasStrategy;
  entry.example = "canvas,entropy_bound=0.1,t_max=0.8,t_min=0.4";
  entry.meaning =
      "random tokens; each step accepts those of lowest entropy and draws the others anew";
  entry.source =
      "transformers, generation_diffusion_gemma.py: EntropyBoundSampler, "
      "StableAndConfidentStoppingCriteria, LinearTemperatureScheduleLogitsProcessor";
  entry.options = {
      real_option("entropy_bound", &UnmaskingOptions::entropy_bound, {0.0, kNoBound, true},
                  "largest sum of the smaller entropies of the accepted positions, in nats"),
      real_option("t_max", &UnmaskingOptions::t_max, {1e-6, kNoBound},
                  "temperature of the first step"),
      real_option("t_min", &UnmaskingOptions::t_min, {0.0, kNoBound},
                  "temperature that the last steps approach"),
      whole_option("stable_steps", &UnmaskingOptions::stable_steps, 0,
                   "steps before with the same most probable tokens, for a canvas to end early"),
      real_option("stop_entropy", &UnmaskingOptions::stop_entropy, {0.0, kNoBound},
                  "mean entropy in nats below which a canvas may end early; 0: never")};
  entry.entropy = true;
  entry.canvas = true;
  entry.usual_steps = kUsualSteps;
  entry.check = [](const UnmaskingOptions& options) {
    if (options.t_max > options.t_min) return;
    throw UsageError(
        fmt::format("t_max: expected more than t_min {}, got {}", options.t_min, options.t_max));
  };
  entry.select = accepted;
  return entry;
}

}  // namespace blockscope
