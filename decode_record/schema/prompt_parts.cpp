#include "decode_record/schema/prompt_parts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "decode_record/base/error.h"
#include "decode_record/base/index_set.h"
#include "decode_record/schema/trace_meta.h"

namespace blockscope {
namespace {

constexpr size_t kMostParts = 100;
constexpr size_t kBefore = 2;  // first, prompt: the regions before the parts
constexpr const char* kExample = R"([{"region": "question", "between": ["Q:", "A:"]}])";

std::string shown(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

RegionRule rule_of(const nlohmann::json& entry, const std::string& where) {
  const auto refuse = [&](const std::string& why) {
    throw UsageError(fmt::format("{}: {}. HINT: {}", where, why, kExample));
  };
  if (!entry.is_object() || !entry.contains("region") || !entry.at("region").is_string()) {
    refuse("expected an object with the name of a \"region\", got " + shown(entry));
  }
  RegionRule rule;
  rule.region = entry.at("region").get<std::string>();
  if (!is_part_name(rule.region)) {
    refuse(
        fmt::format("region: expected a name of at most {} bytes without control characters, "
                    "\",\", \"=\" and \"+\" that is not one of {}, got {}",
                    kMostPartNameBytes, fmt::join(kRegionNames, ", "), shown(entry.at("region"))));
  }
  int kinds = 0;
  for (const auto& [key, value] : entry.items()) {
    if (key == "region") continue;
    ++kinds;
    if (key == "positions" && value.is_string()) {
      rule.positions = parse_index_set(value.get<std::string>(), where + ": positions", 0);
    } else if (key == "token" && value.is_number_unsigned() &&
               std::cmp_less_equal(value.get<uint64_t>(), std::numeric_limits<int64_t>::max())) {
      rule.token = value.get<int64_t>();
    } else if (key == "text" && value.is_string()) {
      rule.text = value.get<std::string>();
    } else if (key == "between" && value.is_array() && value.size() == 2 && value[0].is_string() &&
               value[1].is_string()) {
      rule.from = value[0].get<std::string>();
      rule.to = value[1].get<std::string>();
    } else {
      refuse(
          fmt::format("region \"{}\": expected \"positions\" (\"4-99\"), \"token\" (an id), "
                      "\"text\" or \"between\" (two texts), got \"{}\": {}",
                      rule.region, key, shown(value)));
    }
  }
  const bool says = !rule.positions.empty() || rule.token >= 0 || !rule.text.empty() ||
                    (!rule.from.empty() && !rule.to.empty());
  if (kinds != 1 || !says) {
    refuse(
        fmt::format("region \"{}\": expected one of positions, token, text and between, not "
                    "empty, got {} of them",
                    rule.region, kinds));
  }
  return rule;
}

/// The places [begin, end) of a rule of texts.
std::vector<std::pair<size_t, size_t>> spans_of(const RegionRule& rule, const std::string& text) {
  std::vector<std::pair<size_t, size_t>> spans;
  if (!rule.text.empty()) {
    for (size_t at = text.find(rule.text); at != std::string::npos;
         at = text.find(rule.text, at + rule.text.size())) {
      spans.emplace_back(at, at + rule.text.size());
    }
    return spans;
  }
  size_t from = text.find(rule.from);
  while (from != std::string::npos) {
    const size_t begin = from + rule.from.size();
    const size_t end = text.find(rule.to, begin);
    if (end == std::string::npos) break;
    if (end > begin) spans.emplace_back(begin, end);
    from = text.find(rule.from, end);
  }
  return spans;
}

}  // namespace

std::vector<RegionRule> region_rules_of(const std::string& text, const std::string& where) {
  const nlohmann::json list = nlohmann::json::parse(text, nullptr, false);
  if (!list.is_array() || list.empty() || list.size() > kMostParts) {
    throw UsageError(fmt::format("{}: expected a JSON list of 1 to {} regions, got {}. HINT: {}",
                                 where, kMostParts,
                                 list.is_discarded() ? "no JSON"
                                 : list.is_array()   ? fmt::format("{}", list.size())
                                                     : list.type_name(),
                                 kExample));
  }
  std::vector<RegionRule> rules;
  for (const nlohmann::json& entry : list) rules.push_back(rule_of(entry, where));
  return rules;
}

TokenizedText::TokenizedText(const std::vector<std::string>& pieces) {
  for (const std::string& piece : pieces) {
    starts_.push_back(text_.size());
    text_ += piece;
  }
  starts_.push_back(text_.size());
}

std::vector<size_t> TokenizedText::tokens_of(size_t begin, size_t end) const {
  std::vector<size_t> tokens;
  for (size_t i = 0; i + 1 < starts_.size(); ++i) {
    if (starts_[i] < end && starts_[i + 1] > begin) tokens.push_back(i);
  }
  return tokens;
}

PromptParts::PromptParts(std::vector<RegionRule> rules, std::string where)
    : rules_(std::move(rules)), where_(std::move(where)) {
  for (const RegionRule& rule : rules_) (void)number_of(rule.region);
}

uint8_t PromptParts::number_of(const std::string& name) {
  auto found = std::ranges::find(names_, name);
  if (found == names_.end()) found = names_.insert(names_.end(), name);
  return static_cast<uint8_t>(found - names_.begin() + 1);
}

void PromptParts::refuse(const RegionRule& rule, const std::string& prompt,
                         const std::string& why) const {
  throw UsageError(
      fmt::format("{}: region \"{}\": prompt {}: {}", where_, rule.region, prompt, why));
}

std::vector<uint8_t> PromptParts::parts_of(const std::string& prompt, std::span<const int64_t> ids,
                                           const TokenizedText* text) const {
  std::vector<uint8_t> parts(ids.size(), 0);
  for (const RegionRule& rule : rules_) {
    const bool of_text = !rule.text.empty() || !rule.from.empty();
    if (text == nullptr && of_text) {
      refuse(rule, prompt, "expected a tokenizer to find texts, got none");
    }
    const auto number =
        static_cast<uint8_t>(std::ranges::find(names_, rule.region) - names_.begin() + 1);
    bool any = false;
    const auto take = [&](size_t i) {
      if (parts[i] != 0 && parts[i] != number) {
        refuse(rule, prompt,
               fmt::format("expected regions without common tokens, got position {}, which is in "
                           "\"{}\", too",
                           i, names_[parts[i] - 1]));
      }
      parts[i] = number;
      any = true;
    };
    for (const int64_t position : rule.positions) {
      if (position >= std::ssize(ids)) {
        refuse(rule, prompt,
               fmt::format("expected positions of the prompt, 0 to {}, got {}", ids.size() - 1,
                           position));
      }
      take(static_cast<size_t>(position));
    }
    for (size_t i = 0; rule.token >= 0 && i < ids.size(); ++i) {
      if (ids[i] == rule.token) take(i);
    }
    if (of_text) {
      for (const auto& [begin, end] : spans_of(rule, text->text())) {
        for (const size_t i : text->tokens_of(begin, end)) take(i);
      }
    }
    if (!any) {
      refuse(rule, prompt,
             rule.token >= 0      ? fmt::format("expected token {}, got none", rule.token)
             : !rule.text.empty() ? fmt::format("expected the text \"{}\", got none", rule.text)
                                  : fmt::format("expected text between \"{}\" and \"{}\", got none",
                                                rule.from, rule.to));
    }
  }
  return parts;
}

std::vector<std::string> PromptParts::region_names() const {
  std::vector<std::string> names(kRegionNames.begin(), kRegionNames.begin() + kBefore);
  names.insert(names.end(), names_.begin(), names_.end());
  names.insert(names.end(), kRegionNames.begin() + kBefore, kRegionNames.end());
  return names;
}

std::vector<uint8_t> PromptParts::regions_of(const std::vector<uint8_t>& parts) {
  std::vector<uint8_t> regions;
  for (size_t i = 0; i < parts.size(); ++i) {
    const uint8_t plain = std::cmp_less(i, kFirstPositions) ? 0 : 1;
    regions.push_back(parts[i] == 0 ? plain : static_cast<uint8_t>(parts[i] + kBefore - 1));
  }
  return regions;
}

}  // namespace blockscope
