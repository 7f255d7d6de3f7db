#include "probe/choices/own_option.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <limits>
#include <string_view>

#include "decode_record/base/error.h"

namespace blockscope {
namespace {

constexpr std::array<std::string_view, 4> kKindWords{"whole", "real", "text", "on"};

}  // namespace

OwnOption::Kind parse_own_kind(const std::string& text) {
  const auto found = std::ranges::find(kKindWords, text);
  if (found == kKindWords.end()) {
    throw UsageError(fmt::format("expected whole, real, text or on, got '{}'", text));
  }
  return static_cast<OwnOption::Kind>(found - kKindWords.begin());
}

nlohmann::json parse_own(OwnOption::Kind kind, const std::string& text) {
  switch (kind) {
    case OwnOption::Kind::whole: {
      std::int64_t value = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      if (error != std::errc() || end != text.data() + text.size()) {
        throw UsageError(fmt::format("expected {}, got '{}'", own_range(kind), text));
      }
      return value;
    }
    case OwnOption::Kind::real:
      return parse_real(text, {-std::numeric_limits<double>::infinity(),
                               std::numeric_limits<double>::infinity()});
    case OwnOption::Kind::on:
      return true;
    case OwnOption::Kind::text:
      break;
  }
  return text;
}

std::string own_text(const nlohmann::json& value) {
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "";
  return value.is_number_float() ? real_text(value.get<double>()) : value.dump();
}

std::string own_range(OwnOption::Kind kind) {
  switch (kind) {
    case OwnOption::Kind::whole:
      return "a whole number";
    case OwnOption::Kind::real:
      return "a number";
    case OwnOption::Kind::text:
      return "a text without commas";
    case OwnOption::Kind::on:
      break;
  }
  return "";  // as every switch
}

void check_own_name(const std::string& what, const std::string& name) {
  const bool plain =
      !name.empty() && std::isalpha(static_cast<unsigned char>(name[0])) != 0 &&
      std::ranges::all_of(name, [](unsigned char letter) {
        return std::isalnum(letter) != 0 || letter == '_' || letter == '-' || letter == '+';
      });
  if (plain) return;
  throw UsageError(fmt::format(
      "{}: expected a name of letters, digits, '_', '-' and '+' that begins with a letter, got "
      "'{}'",
      what, name));
}

}  // namespace blockscope
