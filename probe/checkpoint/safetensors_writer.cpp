// See SafetensorsWriter in safetensors.h.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "decode_record/base/error.h"
#include "probe/checkpoint/safetensors.h"

namespace blockscope {

namespace {

std::uint64_t entry_bytes(const SafetensorsWriter::Entry& entry) {
  std::uint64_t bytes = tensor_dtype_size(entry.dtype);
  for (const std::int64_t extent : entry.shape) {
    const bool overflow =
        extent < 0 || __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes);
    if (overflow) {
      throw CheckpointError(
          fmt::format("tensor \"{}\": expected a shape whose size fits 64 bits, got {}", entry.name,
                      shape_text(entry.shape)));
    }
  }
  return bytes;
}

/// Header text, padded with spaces so that the data begins at a multiple of 8 bytes.
std::string header_text(const std::vector<SafetensorsWriter::Entry>& entries,
                        const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json root = nlohmann::ordered_json::object();
  if (!metadata.empty()) root["__metadata__"] = metadata;
  std::set<std::string> names;
  std::uint64_t begin = 0;
  for (const auto& entry : entries) {
    if (!names.insert(entry.name).second || entry.name == "__metadata__") {
      throw CheckpointError(
          fmt::format("tensor \"{}\": expected a name of its own, got it twice", entry.name));
    }
    const std::uint64_t end = begin + entry_bytes(entry);
    nlohmann::ordered_json item;
    item["dtype"] = std::string(tensor_dtype_name(entry.dtype));
    item["shape"] = entry.shape;
    item["data_offsets"] = {begin, end};
    root[entry.name] = std::move(item);
    begin = end;
  }
  std::string text = root.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

void sync_directory(const std::filesystem::path& folder) {
  const int descriptor =
      ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;  // the rename itself succeeded; some file systems refuse this
  ::fsync(descriptor);
  ::close(descriptor);
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<Entry> entries,
                                     const std::map<std::string, std::string>& metadata)
    : entries_(std::move(entries)), file_(path.string(), /*replace=*/true) {
  const std::string header = header_text(entries_, metadata);
  const std::uint64_t length = header.size();
  file_.append(&length, sizeof(length));
  file_.append(header.data(), header.size());
}

void SafetensorsWriter::write(std::string_view name, const void* data, std::size_t size) {
  if (next_ >= entries_.size() || entries_[next_].name != name) {
    throw CheckpointError(
        fmt::format("{}: expected tensor \"{}\" next, got \"{}\"", file_.path(),
                    next_ < entries_.size() ? entries_[next_].name : std::string("none"), name));
  }
  const std::uint64_t expected = entry_bytes(entries_[next_]);
  if (size != expected) {
    throw CheckpointError(fmt::format("{}: tensor \"{}\": expected {} bytes, got {}", file_.path(),
                                      name, expected, size));
  }
  file_.append(data, size);
  ++next_;
}

void SafetensorsWriter::finish() {
  if (next_ != entries_.size()) {
    throw CheckpointError(fmt::format("{}: expected {} tensors to be written, got {}", file_.path(),
                                      entries_.size(), next_));
  }
  file_.sync();
  file_.commit();
  sync_directory(std::filesystem::path(file_.path()).parent_path());
}

}  // namespace blockscope
