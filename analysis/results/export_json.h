// Results as one JSON object: {"format": "blockscope-analysis", "format_version": 1, ...,
// "metrics": [{metric, title, formula, source, computed_from, left_out, arrays}]}. An array has
// axes (name, index, labels), shape, and values and terms as flat row-major lists; a cell without
// terms is null.
#pragma once

#include <ostream>

#include "analysis/results/analysis_document.h"

namespace blockscope {

void write_json(const AnalysisDocument& document, std::ostream& out);

}  // namespace blockscope
