#include "probe/study/study_store.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "decode_record/base/error.h"
#include "decode_record/files/output_file.h"

namespace blockscope {
namespace {

/// The first setting that differs: "contexts: expected [512], got [1024]"; empty: none differs.
std::string first_difference(const nlohmann::json& there, const nlohmann::json& asked) {
  for (const auto& [key, value] : asked.items()) {
    if (!there.contains(key)) return fmt::format("{}: expected none, got {}", key, value.dump());
    if (there.at(key) != value) {
      return fmt::format("{}: expected {}, got {}", key, there.at(key).dump(), value.dump());
    }
  }
  for (const auto& [key, value] : there.items()) {
    if (!asked.contains(key)) return fmt::format("{}: expected {}, got none", key, value.dump());
  }
  return "";
}

}  // namespace

StudyStore::StudyStore(std::string path, const nlohmann::json& settings, bool resume, bool force)
    : path_(std::move(path)) {
  const auto there = std::filesystem::symlink_status(path_);
  const bool exists = std::filesystem::exists(there);
  if (exists && !resume && !force) {
    throw UsageError(
        fmt::format("{}: exists. HINT: --resume goes on with it, --force begins again", path_));
  }
  if (!exists || force) {
    if (std::filesystem::is_regular_file(there)) take();  // throws if another process uses it
    OutputFile begun(path_, force);
    begun.write(nlohmann::json{{"settings", settings}}.dump() + "\n");
    begun.sync();
    begun.commit();
  }
  take();
  read(settings);
}

void StudyStore::take() {
  file_ = OwnFile::open(path_);
  if (!file_) {
    throw Error(
        fmt::format("{}: can't be opened: {}. HINT: move it away, or choose another folder with -o",
                    path_, OwnFile::why_not_open(errno)));
  }
  if (file_.lock()) return;
  throw Error(
      fmt::format("{}: another process is measuring into it. HINT: wait for it, or "
                  "choose another folder with -o",
                  path_));
}

void StudyStore::read(const nlohmann::json& settings) {
  std::ifstream stream(file_.direct_name(), std::ios::binary);
  std::stringstream text;
  text << stream.rdbuf();
  const std::string content = text.str();
  size_t begin = 0;
  size_t whole = 0;  // bytes up to the last whole line
  int64_t number = 0;
  while (begin < content.size()) {
    const size_t end = content.find('\n', begin);
    if (end == std::string::npos) break;  // a kill cut this line
    const nlohmann::json line =
        nlohmann::json::parse(content.begin() + static_cast<std::ptrdiff_t>(begin),
                              content.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
    begin = end + 1;
    ++number;
    const char* member = number == 1 ? "settings" : "cell";
    if (line.is_discarded() || !line.is_object() || !line.contains(member) ||
        (number > 1 && (!line.at("cell").is_string() || !line.contains("value")))) {
      throw Error(fmt::format(
          "{}: line {}: expected an object with \"{}\", as `study` writes it, got something else. "
          "HINT: --force begins again",
          path_, number, member));
    }
    if (number == 1) {
      const std::string difference = first_difference(line.at("settings"), settings);
      if (!difference.empty()) {
        throw UsageError(
            fmt::format("{}: was measured with other settings: {}. HINT: the same "
                        "options go on with it; --force begins again",
                        path_, difference));
      }
    } else {
      values_[line.at("cell").get<std::string>()] = line.at("value");
    }
    whole = begin;
  }
  if (whole < content.size() && ::ftruncate(file_.descriptor(), static_cast<off_t>(whole)) != 0) {
    throw Error(
        fmt::format("{}: its cut last line can't be removed: {}", path_, std::strerror(errno)));
  }
  ::lseek(file_.descriptor(), 0, SEEK_END);
  size_ = file_.size();
  if (number == 0) append(nlohmann::json{{"settings", settings}}.dump());
}

void StudyStore::put(const std::string& cell, nlohmann::json value) {
  append(nlohmann::json{{"cell", cell}, {"value", value}}.dump());
  values_[cell] = std::move(value);
}

void StudyStore::append(const std::string& text) {
  if (const std::string what = file_.harm(size_); !what.empty()) {
    throw Error(fmt::format("{}: {}. HINT: leave it alone until the study ends", path_, what));
  }
  const std::string line = text + "\n";
  size_t written = 0;
  while (written < line.size()) {
    const ssize_t count = ::write(file_.descriptor(), line.data() + written, line.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      throw Error(
          fmt::format("{}: can't be written: {}. HINT: what was measured before is safe; "
                      "make room, then --resume",
                      path_, std::strerror(errno)));
    }
    written += static_cast<size_t>(count);
  }
  if (::fsync(file_.descriptor()) != 0 && errno != EINVAL) {
    throw Error(fmt::format("{}: can't be written: {}", path_, std::strerror(errno)));
  }
  size_ = file_.size();
}

}  // namespace blockscope
