// A new file that appears under its name only when it is whole. It is written in the same folder as
// `<path>.tmp-<process id>` (own_file.h), and commit() renames it. A file that is not committed is
// removed. The next process that writes the same name removes what a killed process left.
#pragma once

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>

#include "decode_record/files/own_file.h"

namespace blockscope {

/// The name that means the standard output, for outputs that are text (command_line/text_output.h).
inline constexpr const char* kStandardOutput = "-";

/// Throws UsageError for text that was hardly meant as the name of a file or folder: an empty text,
/// kStandardOutput, and an option (`-o --force`).
void check_meant_as_name(const std::string& path);

/// The only rule of what may become an output. Throws UsageError if check_meant_as_name refuses the
/// name, if it names something other than a regular file (a folder, a device, a pipe: never
/// replaced), and if the file exists and `replace` is false.
void check_output_name(const std::string& path, bool replace);

/// Removes the temporary files of killed processes that were writing `path`.
void remove_abandoned(const std::string& path);

class OutputFile {
 public:
  /// Checks at once what would fail at the end of a long run. Throws what check_output_name throws,
  /// and Error if the folder can't be written. A command that also reads files must call
  /// CommandFiles::open instead.
  OutputFile(std::string path, bool replace);
  OutputFile(OutputFile&& other) noexcept = default;
  OutputFile& operator=(OutputFile&& other) noexcept = default;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  /// Removes the temporary file unless commit() was called.
  ~OutputFile();

  const std::string& path() const { return path_; }
  /// Where to write: a name that opens the temporary file itself, even if another file has its name
  /// by now. The file exists and is empty.
  std::string temporary() const { return file_.direct_name(); }
  /// Stores `text` as the whole content. Throws Error if that fails (a full disk).
  void write(const std::string& text);
  /// Stores what `writer` writes as the whole content.
  void write(const std::function<void(std::ostream&)>& writer);
  /// Appends bytes. Throws as write().
  void append(const void* data, std::size_t size);
  /// Returns when the present content is on the disk. Throws as write().
  void sync();
  /// Renames the file. Throws Error if that fails, or if somebody moved, removed or cut the file
  /// meanwhile.
  void commit();

 private:
  [[noreturn]] void fail(int reason) const;

  std::string path_;
  OwnFile file_;  // empty: committed or moved from
  bool replace_ = false;
  std::int64_t written_ = 0;  // bytes that the file must have
};

}  // namespace blockscope
