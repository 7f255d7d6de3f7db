// What `study` prints and writes of a report, pictures aside.
#pragma once

#include <string>

#include "probe/study/study.h"

namespace blockscope {

/// `heading`, the tables and the notes, in lines of at most 100 characters where they are
/// sentences.
std::string report_text(const std::string& heading, const StudyReport& report);

std::string csv_text(const StudyReport& report);

}  // namespace blockscope
