// Results as CSV in long form, one row per cell, for pandas, R and spreadsheets: metric, array,
// unit, one column per axis that any of the arrays has (empty where an array hasn't), value, terms.
// A cell without terms has an empty value. Quoting as in RFC 4180, lines end with "\n".
#pragma once

#include <ostream>
#include <string>

#include "analysis/results/analysis_document.h"

namespace blockscope {

/// A field as RFC 4180 wants it: in quotes where it holds a comma, a quote or a line break.
std::string csv_field(const std::string& text);

void write_csv(const AnalysisDocument& document, std::ostream& out);

}  // namespace blockscope
