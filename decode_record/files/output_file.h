// A new file that appears under its name only when it is whole: it is written beside it, as
// `<path>.tmp-<process id>` (own_file.h), and renamed by commit(). What is not committed is
// removed; what a killed process left is removed by the next one that writes the same name.
#pragma once

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>

#include "decode_record/files/own_file.h"

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

/// Removes what killed processes left that were writing `path`.
void remove_abandoned(const std::string& path);

class OutputFile {
 public:
  /// Checks at once what would fail at the end of a long run. Throws what check_output_name throws,
  /// and Error when the folder can't be written. A command that reads files calls
  /// CommandFiles::open instead.
  OutputFile(std::string path, bool replace);
  OutputFile(OutputFile&& other) noexcept = default;
  OutputFile& operator=(OutputFile&& other) noexcept = default;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  /// Removes the temporary file unless commit() was called.
  ~OutputFile();

  const std::string& path() const { return path_; }
  /// Where to write: a name that opens the temporary file itself, whatever stands under its name by
  /// now. The file is there and empty.
  std::string temporary() const { return file_.direct_name(); }
  /// Stores `text` as the whole content. Throws Error when it can't (a full disk).
  void write(const std::string& text);
  /// The same of what `writer` writes.
  void write(const std::function<void(std::ostream&)>& writer);
  /// Adds bytes. Throws as write().
  void append(const void* data, std::size_t size);
  /// Returns when what is in the file now is on the disk. Throws as write().
  void sync();
  /// Renames. Throws Error when it can't, or when somebody moved, removed or cut the file
  /// meanwhile.
  void commit();

 private:
  [[noreturn]] void fail(int reason) const;

  std::string path_;
  OwnFile file_;  // empty: committed or moved from
  bool replace_ = false;
  std::int64_t written_ = 0;  // bytes that it must have
};

}  // namespace blockscope
