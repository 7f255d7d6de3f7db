// A new file that appears under its name only when it is whole: it is written beside it, as
// `<path>.tmp-<process id>`, and renamed by commit(). What is not committed is removed; what a
// killed process left is removed by the next one that writes the same name.
#pragma once

#include <functional>
#include <ostream>
#include <string>

namespace blockscope {

/// The name that means the standard output, where an output is text (command_line/text_output.h).
inline constexpr const char* kStandardOutput = "-";

/// Throws UsageError for a name, of a file or a folder, that was hardly meant as one: an empty one,
/// kStandardOutput, and an option (`-o --force`).
void check_meant_as_name(const std::string& path);

/// The one rule of what may become an output. Throws UsageError when the name is not meant as one,
/// when what is there is no regular file (a folder, a device, a pipe: never replaced), and when it
/// is one and `replace` is false.
void check_output_name(const std::string& path, bool replace);

/// Gives the finished file `from` its name `to`; without `replace` only while that name is free.
/// Returns the system's complaint, empty: done.
std::string rename_output(const std::string& from, const std::string& to, bool replace);

class OutputFile {
 public:
  /// Checks at once what would fail at the end of a long run. Throws what check_output_name throws,
  /// and Error when the folder can't be written. A command that reads files calls
  /// CommandFiles::open instead.
  OutputFile(std::string path, bool replace);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&& other) noexcept;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  /// Removes the temporary file unless commit() was called.
  ~OutputFile();

  const std::string& path() const { return path_; }
  /// Where to write; the file is there and empty.
  const std::string& temporary() const { return temporary_; }
  /// Stores `text` as the whole content. Throws Error when it can't (a full disk).
  void write(const std::string& text) const;
  /// The same of what `writer` writes.
  void write(const std::function<void(std::ostream&)>& writer) const;
  /// Renames. Throws Error when it can't.
  void commit();

 private:
  std::string path_;
  std::string temporary_;  // empty: committed or moved from
  bool replace_ = false;
  int lock_ = -1;  // descriptor; says that the temporary file is somebody's
};

}  // namespace blockscope
