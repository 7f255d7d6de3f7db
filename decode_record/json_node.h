// A value inside a JSON document that knows where it is, for strict readers: every access says what
// was expected there, and a refusal reads "reuse.json: reuse[3][1]: expected true or false, got 1".
// Internal to the readers of small JSON files.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace blockscope {

class JsonNode {
 public:
  /// The root. Both must outlive every node. `file` names the document in messages.
  JsonNode(const nlohmann::json& value, const std::string& file) : value_(&value), file_(&file) {}

  bool has(const char* key) const;  ///< a member with this name; refuses what is no object
  JsonNode member(const char* key) const;
  /// Elements of an array of `count` (any number if negative).
  std::vector<JsonNode> elements(std::int64_t count = -1) const;

  bool boolean() const;
  std::int64_t integer(std::int64_t least, std::int64_t most = INT64_MAX) const;
  /// A finite number in [least, most].
  double number(double least, double most) const;
  /// As number(); NaN for null.
  double number_or_null(double least, double most) const;
  std::string text() const;
  bool is_null() const { return value_->is_null(); }

  /// "…: expected <expected>, got <this value>" as CalibrationError.
  [[noreturn]] void refuse(const std::string& expected) const;
  const std::string& where() const { return where_; }

 private:
  JsonNode(const nlohmann::json& value, const std::string& file, std::string where)
      : value_(&value), file_(&file), where_(std::move(where)) {}

  const nlohmann::json* value_;
  const std::string* file_;
  std::string where_;  ///< "reuse[3][1]"; empty for the root
};

}  // namespace blockscope
