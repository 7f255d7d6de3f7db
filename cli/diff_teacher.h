// `blockscope diff --teacher`: the first difference of two implementations at the same tokens.
#pragma once

#include <CLI/App.hpp>
#include <optional>
#include <string>

namespace blockscope {

struct TeacherFlags {
  std::optional<double> tolerance;
  std::string json, csv;
  bool force = false;
};

void add_teacher_options(CLI::App& command, TeacherFlags& flags);
/// Prints the tables and writes the files. True if nothing differs. `all`: every layer is listed.
bool run_teacher(const std::string& a, const std::string& b, const TeacherFlags& flags, bool all);

}  // namespace blockscope
