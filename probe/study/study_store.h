// Stores what a study measured in `<folder>/<study>.cells.jsonl`: the settings in the first line,
// then one line per cell. A line is on disk before the next cell is begun. A line that a kill cut
// is measured again. A file with other settings is refused.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "decode_record/files/own_file.h"

namespace blockscope {

class StudyStore {
 public:
  /// `resume`: go on with an existing file. `force`: replace it. Throws UsageError for an existing
  /// file without either, and for a file with other settings (the message names one). Throws Error
  /// if the file is a link, or can't be read or written.
  StudyStore(std::string path, const nlohmann::json& settings, bool resume, bool force);

  bool has(const std::string& cell) const { return values_.contains(cell); }
  const nlohmann::json& value(const std::string& cell) const { return values_.at(cell); }
  size_t size() const { return values_.size(); }
  /// Returns once the line is on disk. Throws Error if it can't be written; earlier lines stay.
  void put(const std::string& cell, nlohmann::json value);
  const std::string& path() const { return path_; }

 private:
  void take();  // opens and locks
  void read(const nlohmann::json& settings);
  void append(const std::string& line);

  std::string path_;
  OwnFile file_;
  std::int64_t size_ = 0;  // after our last write
  std::map<std::string, nlohmann::json> values_;
};

}  // namespace blockscope
