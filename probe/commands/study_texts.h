// The text and CSV that `study` makes of a report.
#pragma once

#include <string>

#include "probe/study/study.h"

namespace blockscope {

/// `heading`, the tables and the notes. Sentences are wrapped at 100 characters.
std::string report_text(const std::string& heading, const StudyReport& report);

std::string csv_text(const StudyReport& report);

}  // namespace blockscope
