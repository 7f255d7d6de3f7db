// Values of the page's script in short form.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "decode_record/read/end_of_text.h"
#include "decode_record/read/trace_reader.h"

namespace blockscope {

/// Two letters a value, of 64: 4,095 steps from the least to the greatest value, and a last one for
/// NaN. {"least", "greatest", "codes"}.
nlohmann::json coded(std::span<const double> values);
nlohmann::json coded(std::span<const float> values);
/// The same on a fixed scale: the square root of a weight, from 0 to 1. Small weights keep digits.
std::string coded_weights(std::span<const float> weights);

/// "3" or "3,2": recorded slots of a layer and a head.
std::string choice_key(std::size_t layer, std::optional<std::size_t> head);

/// The texts of a page's tokens, each once.
class PageTexts {
 public:
  explicit PageTexts(const TraceReader& trace) : trace_(trace), ends_text_(trace) {}
  /// Index into texts().
  std::size_t index(std::int64_t token);
  const std::vector<std::string>& texts() const { return texts_; }
  /// Indices of the texts that end a text.
  const std::vector<std::size_t>& ends() const { return ends_; }

 private:
  const TraceReader& trace_;
  EndOfText ends_text_;
  std::map<std::int64_t, std::size_t> known_;
  std::vector<std::string> texts_;
  std::vector<std::size_t> ends_;
};

}  // namespace blockscope
