// Shared by the checkpoint tests: a folder that cleans up after itself, the data made by
// make_fixtures.py, and the message of an expected CheckpointError.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "decode_record/base/error.h"

namespace blockscope::test {

inline const std::filesystem::path kData =
    std::filesystem::path(BLOCKSCOPE_SOURCE_DIR) / "tests/probe/checkpoint/data";

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "blockscope-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

inline void write_text(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

/// The message of the CheckpointError that `run` must throw; without it a test failure and "".
template <class Function>
std::string checkpoint_error(Function&& run) {
  try {
    run();
  } catch (const CheckpointError& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "expected a CheckpointError, got: " << error.what();
    return "";
  }
  ADD_FAILURE() << "expected a CheckpointError, got none";
  return "";
}

}  // namespace blockscope::test
