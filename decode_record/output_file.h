// A new file that appears under its name only when it is whole: it is written beside it, as
// `<path>.tmp-<process id>`, and renamed by commit(). What is not committed is removed.
#pragma once

#include <string>
#include <vector>

namespace blockscope {

/// Throws UsageError when `path` is one of the files that the same command reads.
void refuse_input_as_output(const std::string& path, const std::vector<std::string>& inputs);

class OutputFile {
 public:
  /// Checks at once what would fail at the end of a long run. Throws UsageError when `path` exists
  /// and `replace` is false, and Error when it is not a regular file or its folder can't be
  /// written.
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
  /// Renames. Throws Error when it can't.
  void commit();

 private:
  std::string path_;
  std::string temporary_;  // empty: committed or moved from
};

}  // namespace blockscope
