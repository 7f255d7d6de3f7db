// See json_object.h.
#include "probe/checkpoint/json_object.h"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "decode_record/base/error.h"
#include "decode_record/json/strict_json.h"

namespace blockscope {

using nlohmann::json;

namespace {

constexpr std::size_t kExcerptLength = 80;

std::string range_text(const std::string& kind, const std::string& low, const std::string& high) {
  return fmt::format("{} from {} to {}", kind, low, high);
}

/// "config.json" of "folder/config.json:rope_scaling".
std::string file_name(const std::string& where) {
  const std::size_t slash = where.rfind('/');
  const std::string name = slash == std::string::npos ? where : where.substr(slash + 1);
  return name.substr(0, name.find(':'));
}

}  // namespace

std::string read_checkpoint_text(const std::filesystem::path& path, std::uintmax_t most_bytes) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    throw CheckpointError(fmt::format(
        "{}: expected a regular file, got {}. HINT: fetch the checkpoint again, or copy the file",
        path.string(),
        std::filesystem::exists(path, error) ? "a folder, pipe or device" : "nothing"));
  }
  const auto size = std::filesystem::file_size(path, error);
  if (!error && size > most_bytes) {
    throw CheckpointError(fmt::format("{}: expected a file of at most {} bytes, got {}",
                                      path.string(), most_bytes, size));
  }
  std::ifstream stream(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  if (!stream) {
    throw CheckpointError(
        fmt::format("{}: cannot be read. HINT: check the permissions", path.string()));
  }
  return text;
}

std::string json_excerpt(const json& value) {
  // Containers are summarised, as the text of a hostile one could be larger than the file.
  if (value.is_object()) return fmt::format("an object of {} keys", value.size());
  if (value.is_array() && value.size() > 8) return fmt::format("a list of {}", value.size());
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kExcerptLength) text = text.substr(0, kExcerptLength) + "...";
  return text;
}

JsonObject JsonObject::parse(std::string_view text, std::string where, std::string_view only) {
  const auto kept = [&](int depth, json::parse_event_t event, const json& parsed) {
    return !(depth == 1 && event == json::parse_event_t::key &&
             parsed.get_ref<const std::string&>() != only);
  };
  json value;
  try {
    check_json(text);
    value = only.empty() ? json::parse(text) : json::parse(text, kept);
  } catch (const JsonFault& fault) {
    throw CheckpointError(
        fmt::format("{}: {}", where, fault.text("the file may be cut off; fetch it again")));
  }
  return JsonObject(std::move(value), std::move(where));
}

JsonObject::JsonObject(json value, std::string where)
    : value_(std::move(value)), where_(std::move(where)) {
  if (!value_.is_object()) {
    throw CheckpointError(
        fmt::format("{}: expected a JSON object, got {}", where_, json_excerpt(value_)));
  }
}

const json* JsonObject::find(const std::string& key) const {
  asked_->insert(key);
  const auto found = value_.find(key);
  return found == value_.end() || found->is_null() ? nullptr : &*found;
}

std::vector<std::string> JsonObject::unread() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : value_.items()) {
    if (!value.is_null() && !asked_->contains(key)) keys.push_back(key);
  }
  return keys;
}

void JsonObject::pass_over(std::initializer_list<const char*> keys) const {
  asked_->insert(keys.begin(), keys.end());
}

bool JsonObject::has(const std::string& key) const { return find(key) != nullptr; }

void JsonObject::require_switch(const char* key, bool expected, const char* why) const {
  const auto value = optional_boolean(key);
  if (value && *value != expected) fail(key, expected ? "true" : "false", why);
}

void JsonObject::require_text(const char* key, const char* expected) const {
  const auto value = optional_string(key);
  if (value && *value != expected) fail(key, fmt::format("\"{}\"", expected));
}

void JsonObject::fail(const std::string& key, const std::string& expected,
                      const std::string& hint) const {
  const auto found = value_.find(key);
  const std::string got = found == value_.end() ? "nothing" : json_excerpt(*found);
  throw CheckpointError(fmt::format(
      "{}: key \"{}\": expected {}, got {}. HINT: {}", where_, key, expected, got,
      hint.empty() ? fmt::format("compare {} with the published one: it may have been edited or "
                                 "converted wrongly, else this version can't run the model",
                                 file_name(where_))
                   : hint));
}

std::optional<std::int64_t> JsonObject::optional_integer(const std::string& key, std::int64_t low,
                                                         std::int64_t high) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const std::string expected = range_text("an integer", std::to_string(low), std::to_string(high));
  if (!value->is_number_integer()) fail(key, expected);
  // Unsigned values above INT64_MAX would wrap to a negative number in get<int64_t>.
  if (value->is_number_unsigned() &&
      value->get<std::uint64_t>() > static_cast<std::uint64_t>(high)) {
    fail(key, expected);
  }
  const auto number = value->get<std::int64_t>();
  if (number < low || number > high) fail(key, expected);
  return number;
}

std::optional<double> JsonObject::optional_number(const std::string& key, double low,
                                                  double high) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const std::string expected =
      range_text("a number", fmt::format("{}", low), fmt::format("{}", high));
  if (!value->is_number()) fail(key, expected);
  const auto number = value->get<double>();
  if (!std::isfinite(number) || number < low || number > high) fail(key, expected);
  return number;
}

std::int64_t JsonObject::integer(const std::string& key, std::int64_t low,
                                 std::int64_t high) const {
  const auto value = optional_integer(key, low, high);
  if (!value) fail(key, range_text("an integer", std::to_string(low), std::to_string(high)));
  return *value;
}

double JsonObject::number(const std::string& key, double low, double high) const {
  const auto value = optional_number(key, low, high);
  if (!value) fail(key, range_text("a number", fmt::format("{}", low), fmt::format("{}", high)));
  return *value;
}

std::optional<bool> JsonObject::optional_boolean(const std::string& key) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) fail(key, "true or false");
  return value->get<bool>();
}

std::optional<std::string> JsonObject::optional_string(const std::string& key) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) fail(key, "a string");
  return value->get<std::string>();
}

std::optional<JsonObject> JsonObject::optional_object(const std::string& key) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) fail(key, "an object");
  return JsonObject(*value, fmt::format("{}:{}", where_, key));
}

}  // namespace blockscope
