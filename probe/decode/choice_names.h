// Options that are one of a few names.
#pragma once

#include <fmt/format.h>

#include <string>

#include "decode_record/base/error.h"

namespace blockscope {

/// `names`: pairs of value and text. Throws UsageError for an unknown name, listing the known ones.
template <typename Names>
auto parse_choice(const Names& names, const char* option, const std::string& name) {
  std::string known;
  for (const auto& [value, text] : names) {
    if (name == text) return value;
    known += known.empty() ? text : std::string(", ") + text;
  }
  throw UsageError(fmt::format("{}: expected one of {}, got '{}'", option, known, name));
}

template <typename Names, typename Value>
std::string choice_name(const Names& names, Value wanted) {
  for (const auto& [value, text] : names) {
    if (value == wanted) return text;
  }
  return "unknown";
}

}  // namespace blockscope
