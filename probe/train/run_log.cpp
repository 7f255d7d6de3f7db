#include "probe/train/run_log.h"

#include <fmt/format.h>

#include <cstdlib>

#include "decode_record/base/error.h"
#include "decode_record/files/output_file.h"
#include "decode_record/files/scratch_folder.h"

namespace blockscope {

namespace fs = std::filesystem;

CsvLog::CsvLog(const fs::path& path, const std::string& header, std::int64_t before) : path_(path) {
  std::string kept = header + "\n";
  if (before > 0) {
    std::ifstream old(path);
    std::string line;
    std::getline(old, line);
    while (std::getline(old, line) && std::strtoll(line.c_str(), nullptr, 10) < before) {
      kept += line + "\n";
    }
  }
  OutputFile renewed(path.string(), true);  // a kill must not lose the earlier lines
  renewed.write(kept);
  renewed.commit();
  file_.open(path, std::ios::app);
}

void CsvLog::write(const std::string& line) {
  file_ << line << '\n';
  if (!file_.flush()) throw Error(path_.string() + ": the training log could not be written");
}

/// Throws UsageError for a folder that can't be made or written, before the first step.
void check_train_folder(const fs::path& folder, const char* flag) {
  std::error_code error;
  fs::path there = fs::absolute(folder, error);
  while (!fs::exists(there, error) && there.has_relative_path()) there = there.parent_path();
  if (fs::is_directory(there, error)) {
    try {  // access() tells root that any folder can be written, even /proc
      const ScratchFolder probe(".blockscope-probe", there);
      return;
    } catch (const Error&) {
    }
  }
  throw UsageError(fmt::format(
      "{}: {}: expected a folder that can be written, got {}. HINT: name "
      "another one",
      flag, folder.string(), fs::is_directory(there, error) ? "one that can't" : "a file"));
}

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

void write_line(const fs::path& path, const std::string& line) {
  OutputFile file(path.string(), true);
  file.write(line + "\n");
  file.commit();
}

}  // namespace blockscope
