// See text_json.h.
#include "probe/text/text_json.h"

#include <fmt/format.h>

#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "decode_record/base/error.h"
#include "decode_record/json/strict_json.h"

namespace blockscope {

using nlohmann::json;

std::string read_text_file(const std::filesystem::path& file) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) {
    throw CheckpointError(
        fmt::format("{}: expected a regular file, got {}", file.string(),
                    std::filesystem::exists(file, error) ? "a folder, pipe or device" : "nothing"));
  }
  const std::uintmax_t size = std::filesystem::file_size(file, error);
  if (!error && size > kMaxTextFileBytes) {
    throw CheckpointError(fmt::format("{}: expected at most {} bytes, got {}", file.string(),
                                      kMaxTextFileBytes, size));
  }
  std::ifstream stream(file, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  if (!stream) {
    throw CheckpointError(
        fmt::format("{}: expected a readable file, got a read error. HINT: check "
                    "its permissions",
                    file.string()));
  }
  return std::move(text).str();
}

json parse_json(std::string_view text, const std::string& where, std::string_view hint) {
  try {
    return parse_strict_json(text);
  } catch (const JsonFault& fault) {
    throw CheckpointError(fmt::format("{}: {}", where, fault.text(hint)));
  }
}

std::string describe_json(const json& value) {
  constexpr std::size_t kLongest = 60;
  if (value.is_object()) return fmt::format("an object of {} keys", value.size());
  if (value.is_array()) return fmt::format("a list of {}", value.size());
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

JsonView::JsonView(const json& value, std::string where, std::string path)
    : value_(&value), where_(std::move(where)), path_(std::move(path)) {}

std::string JsonView::place() const {
  return path_.empty() ? where_ : fmt::format("{}: key {}", where_, path_);
}

void JsonView::fail(const std::string& expected, const std::string& hint) const {
  throw CheckpointError(fmt::format("{}: expected {}, got {}{}{}", place(), expected,
                                    describe_json(*value_), hint.empty() ? "" : ". HINT: ", hint));
}

void JsonView::expect_object() const {
  if (!value_->is_object()) fail("an object");
}

JsonView JsonView::at(const std::string& key) const {
  expect_object();
  const auto found = value_->find(key);
  const std::string path = path_.empty() ? key : path_ + "." + key;
  if (found == value_->end()) {
    throw CheckpointError(fmt::format("{}: key {}: expected a value, got nothing", where_, path));
  }
  return JsonView(*found, where_, path);
}

std::optional<JsonView> JsonView::find(const std::string& key) const {
  expect_object();
  const auto found = value_->find(key);
  if (found == value_->end() || found->is_null()) return std::nullopt;
  return JsonView(*found, where_, path_.empty() ? key : path_ + "." + key);
}

std::vector<JsonView> JsonView::elements() const {
  if (!value_->is_array()) fail("a list");
  std::vector<JsonView> views;
  views.reserve(value_->size());
  for (std::size_t i = 0; i < value_->size(); ++i) {
    views.emplace_back((*value_)[i], where_, fmt::format("{}[{}]", path_, i));
  }
  return views;
}

std::string JsonView::string() const {
  if (!value_->is_string()) fail("a string");
  return value_->get<std::string>();
}

bool JsonView::boolean() const {
  if (!value_->is_boolean()) fail("true or false");
  return value_->get<bool>();
}

std::int64_t JsonView::integer(std::int64_t low, std::int64_t high) const {
  const std::string expected = fmt::format("an integer from {} to {}", low, high);
  if (!value_->is_number_integer()) fail(expected);
  // An unsigned value above INT64_MAX would wrap in get<int64_t>.
  if (value_->is_number_unsigned() &&
      value_->get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
    fail(expected);
  }
  const auto number = value_->get<std::int64_t>();
  if (number < low || number > high) fail(expected);
  return number;
}

bool JsonView::boolean_or(const std::string& key, bool fallback) const {
  const std::optional<JsonView> value = find(key);
  return value ? value->boolean() : fallback;
}

}  // namespace blockscope
