#include "decode_record/files/scratch_folder.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <cerrno>
#include <cstring>

#include "decode_record/base/error.h"

namespace blockscope {

namespace fs = std::filesystem;

fs::path temporary_folder() {
  const char* named = std::getenv("TMPDIR");
  if (named == nullptr || *named == '\0') return "/tmp";
  std::error_code error;
  if (fs::is_directory(named, error)) return named;
  throw Error(fmt::format(
      "TMPDIR: {}: expected a folder for temporary files, got {}. HINT: set TMPDIR to a "
      "folder that can be written, or unset it: then it is /tmp",
      named, fs::exists(named, error) ? "something else" : "nothing"));
}

ScratchFolder::ScratchFolder(const std::string& beginning, const fs::path& parent) {
  std::string name = (parent / (beginning + "-XXXXXX")).string();
  if (::mkdtemp(name.data()) == nullptr) {
    throw Error(
        fmt::format("{}: a temporary folder can't be made here: {}. HINT: name another one "
                    "(TMPDIR, bench --folder)",
                    parent.string(), std::strerror(errno)));
  }
  path_ = name;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace blockscope
