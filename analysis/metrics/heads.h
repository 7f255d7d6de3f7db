// What kind of head each query head is, with the scores that decide it: one class per head, the
// first that fits.
#pragma once

#include <array>
#include <memory>
#include <string_view>

#include "analysis/metrics/metrics.h"

namespace blockscope {

/// `class` of a head, by falling precedence from the last one.
inline constexpr std::array<std::string_view, 4> kHeadClasses{"diffuse", "local", "sink",
                                                              "retrieval"};
/// Wu et al., "Retrieval Head Mechanistically Explains Long-Context Factuality", arXiv 2404.15574:
/// a retrieval head has a score of at least 0.1.
inline constexpr double kRetrievalScore = 0.1;
/// Gu et al., "When Attention Sink Emerges in Language Models", arXiv 2410.10781: epsilon = 0.3.
inline constexpr double kSinkShare = 0.3;
/// Ours: most of the weight is inside the block and on the 32 positions before it.
inline constexpr double kLocalShare = 0.5;
inline constexpr std::int64_t kLocalDistance = 32;

/// [layer, head]: `retrieval`, share of the decided tokens that the prompt holds too, at which the
/// head's largest weight, of the query that predicts the token, is on this token in the prompt
/// (needs level full; up to 4 steps of each of the first 16 blocks of a trace; NaN below level
/// full). `first`, share of the weight on the first 4 positions. `local`, share on keys of the
/// block and at most kLocalDistance positions from it (to the next power of two). `diffuse`,
/// entropy / log(number of keys). `class`, place in kHeadClasses: retrieval if the score reaches
/// kRetrievalScore, else sink if `first` reaches kSinkShare, else local if `local` reaches
/// kLocalShare, else diffuse. Reads /spread.
std::unique_ptr<StepMetric> make_heads_metric(const MetricOptions& options);

}  // namespace blockscope
