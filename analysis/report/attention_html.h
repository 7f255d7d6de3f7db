// A picture in HTML of what one query looks at: the text of the keys, shaded by their weights.
#pragma once

#include <optional>
#include <string>

#include "analysis/pass/block_index.h"
#include "analysis/results/metric_result.h"
#include "decode_record/read/trace_reader.h"

namespace blockscope {

struct LookedAt {
  std::size_t layer = 0, head = 0;  ///< recorded slots
  std::string why;                  ///< a sentence: why this head is shown
};

/// Whether the trace holds, or gives, the weights of a head; recorded slots.
bool has_weights(const TraceReader& trace, std::size_t layer, std::size_t head);

/// The head whose map tells most: the best retrieval head of the result of `heads`, else the one
/// with the narrowest weights. Only heads whose weights the trace has. nullopt: none.
std::optional<LookedAt> most_telling_head(const TraceReader& trace, const MetricResult& heads);

/// One step and query of the block: among the queries of tokens that the step decides, one whose
/// largest weight is on a rare key with the same token, else the one with the largest weight. Empty
/// if the block has none. Reads up to 32 steps.
std::string attention_html(const TraceReader& trace, const BlockSteps& block, const LookedAt& head);

std::string attention_css();

}  // namespace blockscope
