// Strict reading of nested JSON from files we did not write. A view knows its file and its path in
// the file ("model.merges[12]"). Every failure names file, key, expected and got.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace blockscope {

/// The largest tokenizer or template file that is read: ten times the largest known one.
inline constexpr std::uintmax_t kMaxTextFileBytes = std::uintmax_t{256} << 20;

/// The whole file as bytes. Throws CheckpointError if it can't be read or is too large.
std::string read_text_file(const std::filesystem::path& file);

/// Reads with strict_json.h. Throws CheckpointError naming `where`, position and reason.
nlohmann::json parse_json(std::string_view text, const std::string& where,
                          std::string_view hint = "the file may be cut off; fetch it again");

class JsonView {
 public:
  JsonView(const nlohmann::json& value, std::string where, std::string path = {});

  const nlohmann::json& raw() const { return *value_; }
  const std::string& where() const { return where_; }
  /// "<file>: key <path>", for messages.
  std::string place() const;
  JsonView at(const std::string& key) const;                   // throws if absent; may be null
  std::optional<JsonView> find(const std::string& key) const;  // nullopt if absent or null
  std::vector<JsonView> elements() const;                      // throws if not a list
  void expect_object() const;

  std::string string() const;
  bool boolean() const;
  std::int64_t integer(std::int64_t low, std::int64_t high) const;
  bool boolean_or(const std::string& key, bool fallback) const;

  /// Throws CheckpointError "<file>: key <path>: expected <expected>, got <value>. HINT: <hint>".
  [[noreturn]] void fail(const std::string& expected, const std::string& hint = {}) const;

 private:
  const nlohmann::json* value_;
  std::string where_;
  std::string path_;
};

/// A scalar as short text, a container as its size. So messages stay short for hostile values, too.
std::string describe_json(const nlohmann::json& value);

}  // namespace blockscope
