// Where a study keeps what it measured: `<folder>/<study>.cells.jsonl`, a first line with the
// settings, then one line a cell, each on disk before the next is begun. A line that a kill cut is
// measured again; a file of other settings is refused.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "decode_record/files/own_file.h"

namespace blockscope {

class StudyStore {
 public:
  /// `resume`: go on with the file if there is one; else it must not exist, unless `force` replaces
  /// it. Throws UsageError for an existing file without either, and, naming the setting, for one of
  /// other settings; Error when it is a link, or can't be read or written.
  StudyStore(std::string path, const nlohmann::json& settings, bool resume, bool force);

  bool has(const std::string& cell) const { return values_.contains(cell); }
  const nlohmann::json& value(const std::string& cell) const { return values_.at(cell); }
  size_t size() const { return values_.size(); }
  /// Returns once the line is on disk. Throws Error when it can't be written; what was there stays.
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
