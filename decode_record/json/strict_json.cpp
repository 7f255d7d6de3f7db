// See strict_json.h.
#include "decode_record/json/strict_json.h"

#include <fmt/format.h>

#include <exception>
#include <unordered_set>
#include <utility>
#include <vector>

namespace blockscope {
namespace {

using nlohmann::json;

constexpr std::size_t kLongestName = 80;
constexpr std::size_t kLongestReason = 200;

std::string shown_name(const std::string& name) {
  const std::string shown =
      name.size() <= kLongestName ? name : name.substr(0, kLongestName) + "...";
  return json(shown).dump(-1, ' ', false, json::error_handler_t::replace);
}

/// The library's message without its "[json.exception...]" prefix: line, column and reason.
std::string reason_of(const std::exception& error) {
  std::string reason = error.what();
  const std::size_t end = reason.find("] ");
  if (end != std::string::npos) reason = reason.substr(end + 2);
  return reason.size() <= kLongestReason ? reason : reason.substr(0, kLongestReason) + "...";
}

/// Checks the text without keeping its values.
class Checker : public nlohmann::json_sax<json> {
 public:
  Checker(std::size_t size, const JsonLimits& limits) : size_(size), limits_(limits) {}

  bool null() override { return value(); }
  bool boolean(bool /*flag*/) override { return value(); }
  bool number_integer(number_integer_t /*number*/) override { return value(); }
  bool number_unsigned(number_unsigned_t /*number*/) override { return value(); }
  bool number_float(number_float_t /*number*/, const string_t& /*text*/) override {
    return value();
  }
  bool string(string_t& /*text*/) override { return value(); }
  bool binary(binary_t& /*bytes*/) override { return value(); }
  bool start_object(std::size_t /*size*/) override { return open(); }
  bool start_array(std::size_t /*size*/) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    if (names_.back().insert(name).second) return true;
    throw JsonFault(
        fmt::format("expected each member of an object once, got {} twice", shown_name(name)), 0,
        "one of the two values was meant: remove the other");
  }

  bool parse_error(std::size_t byte, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    if (error.id / 100 == 4) {  // out_of_range
      throw JsonFault("expected numbers that a double can hold, got a larger one", byte);
    }
    const bool cut = byte > size_;
    throw JsonFault(
        fmt::format("expected JSON, got text that {}: {}",
                    cut ? "ends in the middle"
                        : "does not parse (Python's NaN and Infinity are no JSON either)",
                    reason_of(error)),
        cut ? 0 : byte);
  }

 private:
  bool value() {
    if (++values_ > limits_.values) {
      throw JsonFault(fmt::format("expected at most {} values, got more", limits_.values), 0,
                      "divide it by sequences; repack --merge joins their traces");
    }
    return true;
  }

  bool open() {
    if (names_.size() >= limits_.depth) {
      throw JsonFault(fmt::format("expected at most {} arrays or objects in each other, got more",
                                  limits_.depth),
                      0);
    }
    names_.emplace_back();
    return value();
  }

  bool close() {
    names_.pop_back();
    return true;
  }

  std::size_t size_;
  JsonLimits limits_;
  std::size_t values_ = 0;
  std::vector<std::unordered_set<std::string>> names_;  // member names of the enclosing objects
};

}  // namespace

JsonFault::JsonFault(const std::string& expected_got, std::size_t byte, std::string hint)
    : std::runtime_error(expected_got), byte_(byte), hint_(std::move(hint)) {}

std::string JsonFault::place() const {
  return byte_ == 0 ? std::string("file") : fmt::format("byte {}", byte_);
}

std::string JsonFault::text(std::string_view fallback) const {
  const std::string_view hint = hint_.empty() ? fallback : std::string_view(hint_);
  return hint.empty() ? what() : fmt::format("{}. HINT: {}", what(), hint);
}

void check_json(std::string_view text, const JsonLimits& limits) {
  // The parser would stop at a NUL byte.
  const std::size_t nul = text.find('\0');
  if (nul != std::string_view::npos) {
    throw JsonFault(fmt::format("expected JSON and nothing else, got a NUL byte at {}", nul + 1),
                    nul + 1, "the file is damaged, or something was written after its end");
  }
  Checker checker(text.size(), limits);
  json::sax_parse(text, &checker);
}

json parse_strict_json(std::string_view text, const JsonLimits& limits) {
  check_json(text, limits);
  return json::parse(text);
}

}  // namespace blockscope
