// A value inside a JSON document that knows its place, for strict readers. Every access states what
// it expects; a refusal reads "reuse.json: reuse[3][1]: expected true or false, got 1". Internal to
// the readers of small JSON files.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace blockscope {

/// Throws the message of a refusal, as the error type of the document.
using JsonRefusal = void (*)(const std::string& message);
[[noreturn]] void refuse_calibration(const std::string& message);  ///< CalibrationError
[[noreturn]] void refuse_trajectory(const std::string& message);   ///< TrajectoryError

class JsonNode {
 public:
  /// The root. `value` and `file` must outlive every node. Messages name the document by `file`.
  JsonNode(const nlohmann::json& value, const std::string& file,
           JsonRefusal refusal = refuse_calibration)
      : value_(&value), file_(&file), refusal_(refusal) {}

  bool has(const char* key) const;  ///< whether it has this member; refuses what is not an object
  JsonNode member(const char* key) const;
  std::vector<std::string> keys() const;  ///< names of members; refuses what is not an object
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
  bool is_array() const { return value_->is_array(); }
  bool is_text() const { return value_->is_string(); }

  /// Throws "…: expected <expected>, got <this value>" as the error type of the document.
  [[noreturn]] void refuse(const std::string& expected) const;
  /// Throws "…: <what>".
  [[noreturn]] void complain(const std::string& what) const;
  const std::string& where() const { return where_; }

 private:
  JsonNode child(const nlohmann::json& value, std::string where) const {
    JsonNode node(value, *file_, refusal_);
    node.where_ = std::move(where);
    return node;
  }

  const nlohmann::json* value_;
  const std::string* file_;
  JsonRefusal refusal_;
  std::string where_;  ///< "reuse[3][1]"; empty for the root
};

}  // namespace blockscope
