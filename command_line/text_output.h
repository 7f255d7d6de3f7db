// A text that a command writes to a file, or to the standard output if its name is "-".
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
  /// Writes into the file, which appears at commit(), or prints at once. A terminal gets no control
  /// characters; a pipe gets the bytes unchanged. Throws Error if a file can't be written.
  void write(const std::function<void(std::ostream&)>& writer);
  void write(const std::string& text);
  void commit();

 private:
  std::optional<OutputFile> file_;
};

/// Calls `writer` with the standard output, as TextOutput does.
void print_text(const std::function<void(std::ostream&)>& writer);

}  // namespace blockscope
