// Memory-mapped safetensors files; see safetensors.h.
#include "probe/checkpoint/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "decode_record/base/error.h"

namespace blockscope {

namespace {

[[noreturn]] void fail_system(const std::filesystem::path& path, const std::string& what) {
  throw CheckpointError(fmt::format("{}: {}: {}", path.string(), what, std::strerror(errno)));
}

}  // namespace

/// Owns one read-only mapping.
class SafetensorsFile::Mapping {
 public:
  explicit Mapping(const std::filesystem::path& path) {
    // Without O_NONBLOCK, opening a pipe would wait for its writer.
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) fail_system(path, "cannot be opened");
    struct stat status {};
    if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
      ::close(descriptor);
      throw CheckpointError(
          fmt::format("{}: expected a regular file, got a folder, pipe or device", path.string()));
    }
    size_ = static_cast<std::size_t>(status.st_size);
    if (size_ > 0) address_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
    const int error = errno;
    ::close(descriptor);
    if (address_ == MAP_FAILED) {
      errno = error;
      fail_system(path, fmt::format("cannot map {} bytes", size_));
    }
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (size_ > 0) ::munmap(address_, size_);
  }

  const std::byte* data() const { return static_cast<const std::byte*>(address_); }
  std::size_t size() const { return size_; }

 private:
  void* address_ = nullptr;
  std::size_t size_ = 0;
};

SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;
SafetensorsFile::~SafetensorsFile() = default;

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  SafetensorsFile file;
  file.path_ = path;
  file.mapping_ = std::make_unique<Mapping>(path);
  const std::byte* data = file.mapping_->data();
  const std::size_t size = file.mapping_->size();
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  file.header_ = parse_safetensors_header(bytes, size, path.string());
  for (TensorInfo& tensor : file.header_.tensors) {
    tensor.data = data + file.header_.data_begin + tensor.begin;
  }
  return file;
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto found = std::find_if(header_.tensors.begin(), header_.tensors.end(),
                                  [&](const TensorInfo& tensor) { return tensor.name == name; });
  return found == header_.tensors.end() ? nullptr : &*found;
}

}  // namespace blockscope
