// See SafetensorsWriter in safetensors.h.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "decode_record/error.h"
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

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, std::vector<Entry> entries,
                                     std::map<std::string, std::string> metadata)
    : path_(std::move(path)), entries_(std::move(entries)) {
  const std::string header = header_text(entries_, metadata);
  temporary_ = path_.string() + ".partial";
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) {
    throw CheckpointError(
        fmt::format("{}: cannot be created: {}. HINT: check that the folder exists "
                    "and is writable",
                    temporary_.string(), std::strerror(errno)));
  }
  try {
    const std::uint64_t length = header.size();
    write_bytes(&length, sizeof(length));
    write_bytes(header.data(), header.size());
  } catch (...) {
    // The destructor of an object whose constructor throws doesn't run.
    ::close(descriptor_);
    std::remove(temporary_.c_str());
    throw;
  }
}

SafetensorsWriter::~SafetensorsWriter() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  std::remove(temporary_.c_str());
}

void SafetensorsWriter::write_bytes(const void* data, std::size_t size) {
  const char* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = ::write(descriptor_, bytes, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      throw CheckpointError(fmt::format("{}: writing failed: {}. HINT: check the free space",
                                        temporary_.string(), std::strerror(errno)));
    }
    bytes += written;
    size -= static_cast<std::size_t>(written);
  }
}

void SafetensorsWriter::write(std::string_view name, const void* data, std::size_t size) {
  if (descriptor_ < 0 || next_ >= entries_.size() || entries_[next_].name != name) {
    throw CheckpointError(
        fmt::format("{}: expected tensor \"{}\" next, got \"{}\"", path_.string(),
                    next_ < entries_.size() ? entries_[next_].name : std::string("none"), name));
  }
  const std::uint64_t expected = entry_bytes(entries_[next_]);
  if (size != expected) {
    throw CheckpointError(fmt::format("{}: tensor \"{}\": expected {} bytes, got {}",
                                      path_.string(), name, expected, size));
  }
  write_bytes(data, size);
  ++next_;
}

void SafetensorsWriter::finish() {
  if (descriptor_ < 0 || next_ != entries_.size()) {
    throw CheckpointError(fmt::format("{}: expected {} tensors to be written, got {}",
                                      path_.string(), entries_.size(), next_));
  }
  const bool synced = ::fsync(descriptor_) == 0;
  const bool closed = ::close(descriptor_) == 0;
  descriptor_ = -1;
  if (!synced || !closed || std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const std::string reason = std::strerror(errno);
    std::remove(temporary_.c_str());
    throw CheckpointError(fmt::format("{}: cannot be finished: {}. HINT: check the free space",
                                      path_.string(), reason));
  }
  sync_directory(path_.parent_path());
}

}  // namespace blockscope
