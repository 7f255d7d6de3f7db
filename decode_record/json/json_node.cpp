#include "decode_record/json/json_node.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>

#include "decode_record/base/error.h"

namespace blockscope {
namespace {

/// The value as text, shortened.
std::string excerpt(const nlohmann::json& value) {
  constexpr std::size_t kLongest = 80;
  if (value.is_array()) return fmt::format("an array of {}", value.size());
  if (value.is_object()) return "an object";
  std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

}  // namespace

void refuse_calibration(const std::string& message) { throw CalibrationError(message); }

void refuse_trajectory(const std::string& message) { throw TrajectoryError(message); }

void JsonNode::complain(const std::string& what) const {
  refusal_(fmt::format("{}: {}: {}", *file_, where_.empty() ? "file" : where_, what));
  std::abort();  // never reached: a refusal throws
}

void JsonNode::refuse(const std::string& expected) const {
  complain(fmt::format("expected {}, got {}", expected, excerpt(*value_)));
}

bool JsonNode::has(const char* key) const {
  if (!value_->is_object()) refuse("an object");
  return value_->contains(key);
}

JsonNode JsonNode::member(const char* key) const {
  const std::string where = where_.empty() ? key : where_ + "." + key;
  static const nlohmann::json kNone;
  if (!has(key)) child(kNone, where).complain("expected a value, got none");
  return child((*value_)[key], where);
}

std::vector<std::string> JsonNode::keys() const {
  if (!value_->is_object()) refuse("an object");
  std::vector<std::string> keys;
  for (const auto& [key, value] : value_->items()) keys.push_back(key);
  return keys;
}

std::vector<JsonNode> JsonNode::elements(std::int64_t count) const {
  if (!value_->is_array() || (count >= 0 && value_->size() != static_cast<std::size_t>(count))) {
    refuse(count < 0 ? std::string("an array") : fmt::format("an array of {}", count));
  }
  std::vector<JsonNode> nodes;
  nodes.reserve(value_->size());
  for (std::size_t i = 0; i < value_->size(); ++i) {
    nodes.push_back(child((*value_)[i], fmt::format("{}[{}]", where_, i)));
  }
  return nodes;
}

bool JsonNode::boolean() const {
  if (!value_->is_boolean()) refuse("true or false");
  return value_->get<bool>();
}

std::int64_t JsonNode::integer(std::int64_t least, std::int64_t most) const {
  const std::string expected = most == INT64_MAX
                                   ? fmt::format("an integer of at least {}", least)
                                   : fmt::format("an integer from {} to {}", least, most);
  if (!value_->is_number_integer()) refuse(expected);
  if (value_->is_number_unsigned() && value_->get<std::uint64_t>() > INT64_MAX) refuse(expected);
  const auto number = value_->get<std::int64_t>();
  if (number < least || number > most) refuse(expected);
  return number;
}

double JsonNode::number(double least, double most) const {
  const double number = value_->is_number() ? value_->get<double>() : std::nan("");
  if (!std::isfinite(number) || number < least || number > most) {
    refuse(std::isfinite(most) ? fmt::format("a number from {} to {}", least, most)
                               : fmt::format("a number of at least {}", least));
  }
  return number;
}

double JsonNode::number_or_null(double least, double most) const {
  return is_null() ? std::nan("") : number(least, most);
}

std::string JsonNode::text() const {
  if (!value_->is_string()) refuse("a text");
  return value_->get<std::string>();
}

}  // namespace blockscope
