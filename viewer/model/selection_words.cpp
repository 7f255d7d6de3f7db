#include "viewer/model/selection_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include "decode_record/base/error.h"

namespace blockscope {

SelectionText parse_selection(const std::string& text) {
  SelectionText wanted;
  std::string rest = text.starts_with('#') ? text.substr(1) : text;
  std::ranges::replace(rest, '&', ',');
  std::istringstream parts(rest);
  for (std::string part; std::getline(parts, part, ',');) {
    const auto equals = part.find('=');
    const std::string name = part.substr(0, equals);
    if (equals != std::string::npos && (name == "trace" || name == "panel")) {
      (name == "trace" ? wanted.trace : wanted.panel) = part.substr(equals + 1);
      continue;
    }
    std::int64_t value = 0;
    const char* const end = part.data() + part.size();
    const auto read = equals == std::string::npos
                          ? std::from_chars_result{end, std::errc::invalid_argument}
                          : std::from_chars(part.data() + equals + 1, end, value);
    std::optional<std::int64_t>* slot = name == "sequence" ? &wanted.sequence
                                        : name == "block"  ? &wanted.block
                                        : name == "step"   ? &wanted.step
                                        : name == "layer"  ? &wanted.layer
                                        : name == "head"   ? &wanted.head
                                        : name == "token"  ? &wanted.token
                                                           : nullptr;
    if (slot == nullptr || read.ec != std::errc{} || read.ptr != end) {
      throw UsageError(
          fmt::format("--select: expected name=number with sequence, block, step, layer, head or "
                      "token, or trace=FILE or panel=NAME, separated by commas, got '{}'",
                      part));
    }
    *slot = value;
  }
  return wanted;
}

}  // namespace blockscope
