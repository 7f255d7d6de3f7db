#include "probe/strategies/pc_sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "decode_record/base/error.h"
#include "probe/strategies/strategy_table.h"

namespace blockscope {

std::vector<float> pc_scores(const std::vector<int64_t>& token,
                             const std::vector<float>& confidence, const std::vector<float>& share,
                             double lambda, double alpha) {
  constexpr float kEpsilon = 1e-9F;
  std::vector<float> scores;
  for (size_t i = 0; i < token.size(); ++i) {
    if (token[i] < 0) {
      scores.push_back(0.0F);
      continue;
    }
    const float frequency = share[static_cast<size_t>(token[i])];
    const float debiased = -confidence[i] * std::log(frequency + kEpsilon);
    const float position = std::exp(static_cast<float>(-lambda) * static_cast<float>(i));
    scores.push_back(position * std::min(debiased, static_cast<float>(alpha)));
  }
  return scores;
}

StrategyEntry pc_sampler_entry() {
  StrategyEntry entry;
  entry.name = "pc_sampler";
  entry.example = "pc_sampler,frequencies=frequencies.json";
  entry.meaning = "confidence corrected for token frequency, with early positions preferred";
  entry.source = "PC-Sampler, arXiv 2508.13021; src/generate.py:pc_sampler_function";
  entry.options = {
      file_option("frequencies", &UnmaskingOptions::frequencies_file,
                  "file that `blockscope frequencies` wrote for this vocabulary"),
      real_option("pc_lambda", &UnmaskingOptions::pc_lambda, {0.0, kNoBound}, "decay per position"),
      real_option("pc_alpha", &UnmaskingOptions::pc_alpha, {0.0, kNoBound, true},
                  "the largest debiased confidence"),
      density_option(), quota_option()};
  entry.check = [](const UnmaskingOptions& options) {
    if (options.frequencies != nullptr || !options.frequencies_file.empty()) return;
    throw UsageError(
        "expected frequencies=FILE with how often each token occurs, got none. HINT: blockscope "
        "frequencies MODEL text.txt -o frequencies.json makes the file");
  };
  entry.text = [](const UnmaskingOptions& options) {
    return fmt::format(", lambda {:g}, alpha {:g}", options.pc_lambda, options.pc_alpha);
  };
  entry.answer_scores = [](const UnmaskingOptions& options, const std::vector<int64_t>& token,
                           const std::vector<float>& confidence, bool by_place) {
    return pc_scores(token, confidence, options.frequencies->share,
                     by_place ? options.pc_lambda : 0.0, options.pc_alpha);
  };
  entry.select = [](StrategyStep& step) { return step.best(step.due); };
  return entry;
}

}  // namespace blockscope
