// The only way to make a file before it has its final name. It is created under a free name, never
// through a link, and belongs to this process alone. It is renamed only if its name still refers to
// it and all of its bytes are there.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace blockscope {

/// Renames the file `from` to `to`; without `replace` only if that name is free. Returns the
/// system's error message; empty: done.
std::string rename_output(const std::string& from, const std::string& to, bool replace);

/// An open file and its name.
class OwnFile {
 public:
  OwnFile() = default;
  /// A new, empty file. If something has this name already, even a link, it stays as it is. Then,
  /// or if the folder can't be written, the result is empty and errno says why.
  static OwnFile create(const std::string& path);
  /// An existing file, to go on with. A link is not followed. Empty and errno as above.
  static OwnFile open(const std::string& path);
  /// The errno of open() as text.
  static std::string why_not_open(int error);

  OwnFile(OwnFile&& other) noexcept { *this = std::move(other); }
  OwnFile& operator=(OwnFile&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  OwnFile(const OwnFile&) = delete;
  OwnFile& operator=(const OwnFile&) = delete;
  /// Closes the file, which ends its lock. Never removes the file.
  ~OwnFile();

  explicit operator bool() const { return descriptor_ >= 0; }
  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  /// A name that opens this very file, even if another file has the name path() by now. Without
  /// /proc it is path().
  std::string direct_name() const;

  /// Locks the file against other processes that ask for the lock. The lock ends with this process.
  /// False: another process holds it. On a file system without locks the result is true.
  bool lock() const;
  /// Whether path() still refers to this file.
  bool has_its_name() const;
  std::int64_t size() const;
  /// What somebody else did to the file, such as "was removed while it was written": it was moved,
  /// removed or replaced, or has fewer than `least` bytes. Empty: nothing.
  std::string harm(std::int64_t least) const;
  /// Calls harm(), then rename_output(), then checks that this file got the name. Returns the error
  /// as a sentence without its subject; empty: done.
  std::string rename(const std::string& to, bool replace, std::int64_t least);
  /// Removes the file if path() still refers to it.
  void remove() const;

 private:
  OwnFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

  std::string path_;
  int descriptor_ = -1;
};

}  // namespace blockscope
