// Strict reading of JSON objects from files we did not write. Every access checks presence, type
// and range. Every failure is a CheckpointError that names file, key, expected and got. As in
// `transformers`, a key with the value null counts as absent. An object remembers which keys were
// read, so the others can be refused (config_keys.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace blockscope {

class JsonObject {
 public:
  /// `where` is the file's name in messages. `only`: keep the value of this key alone; "": of all
  /// keys. Throws if `text` is not one JSON object that strict_json.h accepts.
  static JsonObject parse(std::string_view text, std::string where, std::string_view only = {});
  JsonObject(nlohmann::json value, std::string where);

  const std::string& where() const { return where_; }
  const nlohmann::json& raw() const { return value_; }
  /// The keys that are present, not null, and were never read through any copy of this object.
  std::vector<std::string> unread() const;
  /// Counts keys as read that another key makes meaningless.
  void pass_over(std::initializer_list<const char*> keys) const;
  /// Present and not null.
  bool has(const std::string& key) const;

  std::int64_t integer(const std::string& key, std::int64_t low, std::int64_t high) const;
  double number(const std::string& key, double low, double high) const;
  std::optional<std::int64_t> optional_integer(const std::string& key, std::int64_t low,
                                               std::int64_t high) const;
  std::optional<double> optional_number(const std::string& key, double low, double high) const;
  std::optional<bool> optional_boolean(const std::string& key) const;
  std::optional<std::string> optional_string(const std::string& key) const;
  std::optional<JsonObject> optional_object(const std::string& key) const;

  /// Call fail() if the key is present with another value than the one that the runtime implements.
  void require_switch(const char* key, bool expected, const char* why = "") const;
  void require_text(const char* key, const char* expected) const;

  /// Throws "<where>: key "<key>": expected <expected>, got <value>".
  [[noreturn]] void fail(const std::string& key, const std::string& expected,
                         const std::string& hint = {}) const;

 private:
  const nlohmann::json* find(const std::string& key) const;
  nlohmann::json value_;
  std::string where_;
  // Shared by all copies, so a key that was read through one copy counts for all of them.
  std::shared_ptr<std::set<std::string>> asked_ = std::make_shared<std::set<std::string>>();
};

/// Reads a checkpoint's text file of at most `most_bytes`. Throws CheckpointError if it is too
/// large, not readable, or not a regular file (opening a pipe would wait for its writer).
std::string read_checkpoint_text(const std::filesystem::path& path, std::uintmax_t most_bytes);

/// At most 80 characters of the value's JSON text, for messages.
std::string json_excerpt(const nlohmann::json& value);

}  // namespace blockscope
