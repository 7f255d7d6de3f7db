// A private folder of this process for temporary files.
#pragma once

#include <filesystem>
#include <string>

namespace blockscope {

/// TMPDIR, or /tmp if it is empty or not set. Throws Error if TMPDIR names no folder.
std::filesystem::path temporary_folder();

/// A new folder that only its owner can enter. The destructor removes it with everything in it.
class ScratchFolder {
 public:
  /// Makes `parent`/`beginning`-XXXXXX. Throws Error if that fails.
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
