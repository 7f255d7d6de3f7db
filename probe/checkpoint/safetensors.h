// The safetensors file format: 8 bytes header length (little-endian), a JSON header, then the data.
// Reading maps the file and copies nothing. The whole header is checked before any pointer is
// returned. Rules of the official crate: header <= 100 MB, offsets contiguous from 0 to the file's
// end (no hole, no overlap), byte size = product of the shape * element width.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "decode_record/files/output_file.h"

namespace blockscope {

enum class TensorDtype { kF64, kF32, kF16, kBF16, kI64, kI32, kI16, kI8, kU8, kBool };

/// "F32", "BF16", ... as in the header.
std::string_view tensor_dtype_name(TensorDtype dtype);
/// Whether weights may have it: F32, F16 or BF16.
inline bool is_weight_dtype(TensorDtype dtype) {
  return dtype == TensorDtype::kF32 || dtype == TensorDtype::kF16 || dtype == TensorDtype::kBF16;
}
/// Bytes per element.
std::size_t tensor_dtype_size(TensorDtype dtype);

struct TensorInfo {
  std::string name;
  TensorDtype dtype = TensorDtype::kF32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  // offset of the first byte in the data section
  std::uint64_t size = 0;   // bytes
  // Mapped, read-only, valid as long as the file object lives. The format has no alignment: use
  // memcpy, not a cast, unless the address is checked.
  const std::byte* data = nullptr;
};

/// "[3, 4]"
std::string shape_text(const std::vector<std::int64_t>& shape);

/// The parsed header. `data` pointers are null here; `SafetensorsFile` fills them in.
struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // ordered by `begin`
  std::map<std::string, std::string> metadata;
  std::uint64_t data_begin = 0;  // 8 + header length
};

/// Checks and parses the header of a file of `file_size` bytes. `bytes`: the beginning of the file,
/// with at least the header. `where` names the file in messages. Throws CheckpointError.
SafetensorsHeader parse_safetensors_header(std::string_view bytes, std::uint64_t file_size,
                                           const std::string& where);

/// One mapped file. Movable, not copyable; `data` pointers stay valid when moved.
class SafetensorsFile {
 public:
  /// Throws CheckpointError for anything wrong with the file.
  static SafetensorsFile open(const std::filesystem::path& path);
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;
  ~SafetensorsFile();

  const std::filesystem::path& path() const { return path_; }
  const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  /// nullptr if there is no tensor of this name.
  const TensorInfo* find(std::string_view name) const;

 private:
  SafetensorsFile() = default;
  class Mapping;
  std::filesystem::path path_;
  std::unique_ptr<Mapping> mapping_;
  SafetensorsHeader header_;
};

/// Writes one file: declare every tensor, then write the data in the declared order. The file
/// appears under its name only after `finish` (OutputFile, fsync). Without `finish` no file
/// remains. Throws CheckpointError for tensors that were not declared, and what OutputFile throws.
class SafetensorsWriter {
 public:
  struct Entry {
    std::string name;
    TensorDtype dtype = TensorDtype::kF32;
    std::vector<std::int64_t> shape;
  };
  SafetensorsWriter(const std::filesystem::path& path, std::vector<Entry> entries,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

  /// The next tensor in the declared order; `size` must be its size in bytes.
  void write(std::string_view name, const void* data, std::size_t size);
  void finish();

 private:
  std::vector<Entry> entries_;
  OutputFile file_;
  std::size_t next_ = 0;
};

}  // namespace blockscope
