// Results as CSV in long form, for pandas, R and spreadsheets. Each cell is a row: metric, array,
// unit, one column per axis of any array (empty for an array without that axis), value, terms. A
// cell without terms has an empty value. Quotes follow RFC 4180; lines end with "\n".
#pragma once

#include <ostream>
#include <string>

#include "analysis/results/analysis_document.h"

namespace blockscope {

/// A field by RFC 4180: in quotes if it holds a comma, a quote or a line break.
std::string csv_field(const std::string& text);

void write_csv(const AnalysisDocument& document, std::ostream& out);

}  // namespace blockscope
