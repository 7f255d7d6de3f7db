// Reads the JSON text of every file that other programs may write: config.json, tokenizers,
// calibration files, trajectories of other tools. The parser alone would accept two equal names and
// use the second, and would ignore everything after a NUL byte.
#pragma once

#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

namespace blockscope {

struct JsonLimits {
  std::size_t depth = std::numeric_limits<std::size_t>::max();   // nested arrays or objects
  std::size_t values = std::numeric_limits<std::size_t>::max();  // in the whole text
};

/// What is wrong with a text. Callers that know the file turn it into an Error.
class JsonFault : public std::runtime_error {
 public:
  JsonFault(const std::string& expected_got, std::size_t byte, std::string hint = {});
  /// "byte 12", counted from 1, or "file" if no single place is wrong.
  std::string place() const;
  /// "expected <expected>, got <found>. HINT: <hint>", with line and column if the text does not
  /// parse. `fallback` is the hint if the fault has none; "": no hint.
  std::string text(std::string_view fallback = {}) const;

 private:
  std::size_t byte_;
  std::string hint_;
};

/// Throws JsonFault unless `text` is one JSON value with nothing after it, no object names a member
/// twice, and the limits hold. Keeps no values.
void check_json(std::string_view text, const JsonLimits& limits = {});

/// The value of `text`, after check_json().
nlohmann::json parse_strict_json(std::string_view text, const JsonLimits& limits = {});

}  // namespace blockscope
