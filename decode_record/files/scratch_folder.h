// A folder of this process's own for files that nobody else needs.
#pragma once

#include <filesystem>
#include <string>

namespace blockscope {

/// TMPDIR, or /tmp where it is empty or not set. Throws Error when TMPDIR names no folder.
std::filesystem::path temporary_folder();

/// A new folder that only its owner can enter; removed with everything in it.
class ScratchFolder {
 public:
  /// `parent`/`beginning`-XXXXXX. Throws Error when it can't be made.
  explicit ScratchFolder(const std::string& beginning,
                         const std::filesystem::path& parent = temporary_folder());
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace blockscope
