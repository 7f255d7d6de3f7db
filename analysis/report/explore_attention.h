// The attention over the text that a reader of the page can choose: for the queries of decided
// tokens, of some heads.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "analysis/pass/block_index.h"
#include "analysis/report/explore_values.h"
#include "analysis/report/sections.h"

namespace blockscope {

struct AttentionOverText {
  nlohmann::json json;   ///< null: the trace has no weights
  std::string left_out;  ///< what did not fit; empty: nothing
};

/// At most `limit` weights. `blocks`: the first ones go first. `heads`: metric `heads`, or nullptr;
/// heads that find copied tokens go first.
AttentionOverText attention_over_text(const TraceReader& trace,
                                      const std::vector<BlockSteps>& blocks,
                                      const PictureChoice& choice, const MetricResult* heads,
                                      std::size_t limit, PageTexts& texts);

}  // namespace blockscope
