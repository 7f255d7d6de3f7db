// The files of a training run besides states and checkpoints: CSV logs, and the checks of its
// folders before the first step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace blockscope {

/// A CSV log whose lines begin with a number. A resumed run drops the lines that it will write
/// again.
class CsvLog {
 public:
  /// Keeps the lines of an earlier log whose number is below `before`; 0: none.
  CsvLog(const std::filesystem::path& path, const std::string& header, std::int64_t before);
  /// Throws Error if the line could not be written.
  void write(const std::string& line);

 private:
  std::filesystem::path path_;
  std::ofstream file_;
};

/// Throws UsageError for a folder that can't be made or written, before the first step.
void check_train_folder(const std::filesystem::path& folder, const char* flag);

/// The first line of a file; empty if there is none.
std::string first_line(const std::filesystem::path& path);

/// Writes a file of one line, whole or not at all.
void write_line(const std::filesystem::path& path, const std::string& line);

}  // namespace blockscope
