// The one rule of how a file comes into being before it has its final name: it is created under a
// name that is free, never through a link, is this process's alone, and is renamed only while its
// name still means it and all of its bytes are there.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace blockscope {

/// Gives the file `from` its name `to`; without `replace` only while that name is free. Returns the
/// system's complaint, empty: done.
std::string rename_output(const std::string& from, const std::string& to, bool replace);

/// An open file and its name.
class OwnFile {
 public:
  OwnFile() = default;
  /// A new, empty file. Where something has this name already, a link too, it stays as it is: then,
  /// and where the folder can't be written, the result is empty and errno says why.
  static OwnFile create(const std::string& path);
  /// A file that is there, to go on with; a link is not followed. Empty and errno as above.
  static OwnFile open(const std::string& path);
  /// errno of open() in words.
  static std::string why_not_open(int error);

  OwnFile(OwnFile&& other) noexcept { *this = std::move(other); }
  OwnFile& operator=(OwnFile&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  OwnFile(const OwnFile&) = delete;
  OwnFile& operator=(const OwnFile&) = delete;
  /// Closes it, which ends its lock. Never removes it.
  ~OwnFile();

  explicit operator bool() const { return descriptor_ >= 0; }
  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  /// A name that opens this very file, whatever stands under path() by now. Where /proc isn't
  /// mounted it is path().
  std::string direct_name() const;

  /// Keeps other processes that ask for it out, until this one ends, whatever ends it. False: one
  /// holds it. A file system without locks answers true.
  bool lock() const;
  /// Whether path() means this file.
  bool has_its_name() const;
  std::int64_t size() const;
  /// What somebody else did to the file, as "was removed while it was written": where it is now, or
  /// that it has fewer than `least` bytes. Empty: nothing.
  std::string harm(std::int64_t least) const;
  /// harm(), then rename_output(), then a look whether the file is what got the name: the
  /// complaint, as a sentence without its subject. Empty: done.
  std::string rename(const std::string& to, bool replace, std::int64_t least);
  /// Removes it if path() means it.
  void remove() const;

 private:
  OwnFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

  std::string path_;
  int descriptor_ = -1;
};

}  // namespace blockscope
