// A text that a command writes: to a file, or, where its name is "-", to the standard output.
#pragma once

#include <functional>
#include <optional>
#include <ostream>
#include <string>

#include "decode_record/files/command_files.h"

namespace blockscope {

class TextOutput {
 public:
  /// Throws what CommandFiles::open throws, and UsageError when another output has the standard
  /// output already.
  TextOutput(CommandFiles& files, const std::string& path, bool replace);

  bool is_standard_output() const { return !file_; }
  /// Into the file, which appears at commit(); or prints at once, to a terminal without control
  /// characters (a pipe gets the bytes as they are). Throws Error when a file can't be written.
  void write(const std::function<void(std::ostream&)>& writer);
  void write(const std::string& text);
  void commit();

 private:
  std::optional<OutputFile> file_;
};

/// Calls `writer` with the standard output, as TextOutput does.
void print_text(const std::function<void(std::ostream&)>& writer);

}  // namespace blockscope
