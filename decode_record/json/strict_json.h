// One reading of JSON text for every file that somebody else wrote: config.json, tokenizers,
// calibration files, trajectories of other tools. The parser alone would take the second of two
// equal names, and would stop at a NUL byte and never see what follows.
#pragma once

#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

namespace blockscope {

struct JsonLimits {
  std::size_t depth = std::numeric_limits<std::size_t>::max();   // arrays or objects in each other
  std::size_t values = std::numeric_limits<std::size_t>::max();  // in the whole text
};

/// What is wrong with a text. Whoever knows the file turns it into an Error.
class JsonFault : public std::runtime_error {
 public:
  JsonFault(const std::string& expected_got, std::size_t byte, std::string hint = {});
  /// "byte 12", counted from 1, or "file" where no place is at fault.
  std::string place() const;
  /// "expected <expected>, got <found>. HINT: <hint>", with line and column where the text does not
  /// parse. `fallback` is the hint where the fault has none of its own; "" for none at all.
  std::string text(std::string_view fallback = {}) const;

 private:
  std::size_t byte_;
  std::string hint_;
};

/// Throws JsonFault unless `text` is one JSON value, with nothing after it, in which no object
/// names a member twice, within the limits. Builds nothing.
void check_json(std::string_view text, const JsonLimits& limits = {});

/// The value of a text that `check_json` takes.
nlohmann::json parse_strict_json(std::string_view text, const JsonLimits& limits = {});

}  // namespace blockscope
