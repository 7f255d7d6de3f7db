#include "decode_record/files/command_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "decode_record/base/error.h"
#include "decode_record/read/trace_inventory.h"
#include "decode_record/read/trace_open.h"

namespace blockscope {
namespace {

namespace fs = std::filesystem;

/// One file, whether it exists already (by device and inode) or not yet (by name).
bool is_same(const std::string& a, const std::string& b) {
  std::error_code error;
  if (fs::equivalent(a, b, error)) return true;
  const fs::path one = fs::weakly_canonical(fs::absolute(a, error), error);
  const fs::path other = fs::weakly_canonical(fs::absolute(b, error), error);
  return !one.empty() && one == other;
}

bool is_of_checkpoint(const fs::path& path) {
  static constexpr std::array kEndings{".safetensors", ".bin", ".pt",   ".pth",
                                       ".jinja",       ".py",  ".model"};
  static constexpr std::array kNames{"config.json",
                                     "generation_config.json",
                                     "tokenizer.json",
                                     "tokenizer_config.json",
                                     "special_tokens_map.json",
                                     "added_tokens.json",
                                     "vocab.json",
                                     "merges.txt",
                                     "chat_template.json",
                                     "block_diffusion.json",
                                     "dlm_config.json"};
  const std::string name = path.filename().string();
  return std::ranges::count(kEndings, path.extension().string()) > 0 ||
         std::ranges::count(kNames, name) > 0 || name.ends_with(".index.json");
}

}  // namespace

void CommandFiles::reads(const std::string& path) {
  if (!path.empty()) inputs_.push_back(path);
}

void CommandFiles::reads_trace(const std::string& path) {
  if (path.empty()) return;
  reads(path);
  reads(path + ".partial");
  reads(existing_trace(path));
  for (const std::string& part : list_parts(path)) reads(part);
}

void CommandFiles::reads_checkpoint(const std::string& folder) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    if (at->is_regular_file(ignored) && is_of_checkpoint(at->path())) reads(at->path().string());
  }
}

void CommandFiles::reserve(const std::string& path, bool replace) {
  const auto is_this = [&path](const std::string& other) { return is_same(path, other); };
  if (std::ranges::any_of(inputs_, is_this)) {
    throw UsageError(fmt::format(
        "{}: the command reads this file. HINT: name another one for the output", path));
  }
  const auto is_taken = [&](const std::string& other) {
    return other != kStandardOutput && is_this(other);
  };
  if (std::ranges::any_of(outputs_, is_taken)) {
    throw UsageError(fmt::format("{}: two outputs have this name. HINT: one file for each", path));
  }
  check_output_name(path, replace);
  outputs_.push_back(path);
}

void CommandFiles::reserve_standard_output() {
  if (std::ranges::count(outputs_, kStandardOutput) > 0) {
    throw UsageError("-: only one output can have the standard output. HINT: name a file");
  }
  outputs_.emplace_back(kStandardOutput);
}

OutputFile CommandFiles::open(const std::string& path, bool replace) {
  reserve(path, replace);
  return OutputFile(path, replace);
}

}  // namespace blockscope
