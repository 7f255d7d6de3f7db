#include "probe/run/prompt_regions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "decode_record/base/error.h"
#include "decode_record/base/index_set.h"
#include "decode_record/schema/trace_meta.h"

namespace blockscope {
namespace {

constexpr size_t kMostParts = 100;
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
  const bool fixed = std::ranges::find(kRegionNames, rule.region) != kRegionNames.end();
  if (fixed || rule.region.empty() || rule.region.find_first_of(",=+") != std::string::npos) {
    refuse(
        fmt::format("region: expected a name without \",\", \"=\" and \"+\" that is not one of "
                    "{}, got \"{}\"",
                    fmt::join(kRegionNames, ", "), rule.region));
  }
  int kinds = 0;
  for (const auto& [key, value] : entry.items()) {
    if (key == "region") continue;
    ++kinds;
    if (key == "positions" && value.is_string()) {
      rule.positions = parse_index_set(value.get<std::string>(), where + ": positions", 0);
    } else if (key == "token" && value.is_number_unsigned()) {
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

/// Where each message's content stands in what the template rendered. The place is found with a
/// stand-in for the content, because a content such as "user" also stands in headers.
std::vector<std::pair<size_t, size_t>> content_spans(const std::vector<ChatMessage>& messages,
                                                     const ChatTemplate& chat,
                                                     const ChatOptions& options) {
  const std::string stand_in =
      "\xEE\x80\x80"
      "content"
      "\xEE\x80\x81";  // private code points
  const std::string text = chat.render(messages, options);
  std::vector<std::pair<size_t, size_t>> spans;
  for (size_t i = 0; i < messages.size(); ++i) {
    spans.emplace_back(0, 0);
    std::vector<ChatMessage> changed = messages;
    changed[i].content = stand_in;
    std::string content = messages[i].content;
    try {
      const size_t at = chat.render(changed, options).find(stand_in);
      if (at == std::string::npos) continue;
      if (text.compare(at, content.size(), content) != 0) {  // many templates trim it
        const size_t first = content.find_first_not_of(" \t\r\n");
        if (first == std::string::npos) continue;
        content = content.substr(first, content.find_last_not_of(" \t\r\n") + 1 - first);
        if (text.compare(at, content.size(), content) != 0) continue;
      }
      spans.back() = {at, at + content.size()};
    } catch (const PromptError&) {
      continue;  // the template refuses the stand-in
    }
  }
  return spans;
}

}  // namespace

std::vector<RegionRule> read_region_rules(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw UsageError(fmt::format("--regions: {}: can't be read", path));
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const nlohmann::json list = nlohmann::json::parse(text, nullptr, false);
  if (!list.is_array() || list.empty() || list.size() > kMostParts) {
    throw UsageError(fmt::format("{}: expected a JSON list of 1 to {} regions, got {}. HINT: {}",
                                 path, kMostParts,
                                 list.is_discarded() ? "no JSON"
                                 : list.is_array()   ? fmt::format("{}", list.size())
                                                     : list.type_name(),
                                 kExample));
  }
  std::vector<RegionRule> rules;
  for (const nlohmann::json& entry : list) rules.push_back(rule_of(entry, path));
  return rules;
}

RegionFinder::RegionFinder(std::vector<RegionRule> rules, std::string where)
    : rules_(std::move(rules)), where_(std::move(where)) {
  for (const RegionRule& rule : rules_) (void)number_of(rule.region);
}

uint8_t RegionFinder::number_of(const std::string& name) {
  auto found = std::ranges::find(names_, name);
  if (found == names_.end()) found = names_.insert(names_.end(), name);
  return static_cast<uint8_t>(found - names_.begin() + 1);
}

void RegionFinder::refuse(const RegionRule& rule, const std::string& prompt,
                          const std::string& why) const {
  throw UsageError(
      fmt::format("{}: region \"{}\": prompt {}: {}", where_, rule.region, prompt, why));
}

std::vector<RegionFinder::Span> RegionFinder::spans_of(const RegionRule& rule,
                                                       const std::string& text) const {
  std::vector<Span> spans;
  if (!rule.text.empty()) {
    for (size_t at = text.find(rule.text); at != std::string::npos;
         at = text.find(rule.text, at + rule.text.size())) {
      spans.push_back({at, at + rule.text.size()});
    }
    return spans;
  }
  size_t from = text.find(rule.from);
  while (from != std::string::npos) {
    const size_t begin = from + rule.from.size();
    const size_t end = text.find(rule.to, begin);
    if (end == std::string::npos) break;
    if (end > begin) spans.push_back({begin, end});
    from = text.find(rule.from, end);
  }
  return spans;
}

std::vector<uint8_t> RegionFinder::parts_of(const std::string& prompt,
                                            const std::vector<TokenId>& ids,
                                            const Tokenizer* tokenizer,
                                            const std::vector<ChatMessage>* messages,
                                            const ChatTemplate* chat, const ChatOptions& options) {
  std::vector<uint8_t> parts(ids.size(), 0);
  std::string text;
  std::vector<size_t> starts;  // of the tokens in the text
  for (const TokenId id : ids) {
    starts.push_back(text.size());
    if (tokenizer != nullptr) text += tokenizer->token_bytes(id);
  }
  starts.push_back(text.size());
  // A token with a byte of the span belongs to it.
  const auto for_tokens = [&](Span span, const auto& take) {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (starts[i] < span.end && starts[i + 1] > span.begin) take(i);
    }
  };
  for (const RegionRule& rule : rules_) {
    if (tokenizer == nullptr && (!rule.text.empty() || !rule.from.empty())) {
      refuse(rule, prompt, "expected tokenizer.json in the checkpoint to find texts, got none");
    }
    const uint8_t number = number_of(rule.region);
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
    if (!rule.text.empty() || !rule.from.empty()) {
      for (const Span span : spans_of(rule, text)) for_tokens(span, take);
    }
    if (!any) {
      refuse(rule, prompt,
             rule.token >= 0      ? fmt::format("expected token {}, got none", rule.token)
             : !rule.text.empty() ? fmt::format("expected the text \"{}\", got none", rule.text)
                                  : fmt::format("expected text between \"{}\" and \"{}\", got none",
                                                rule.from, rule.to));
    }
  }
  // With a normalising tokenizer, tokens don't add up to the text, so places are unknown.
  if (messages == nullptr || chat == nullptr || text != chat->render(*messages, options)) {
    return parts;
  }
  const auto spans = content_spans(*messages, *chat, options);
  for (size_t m = 0; m < messages->size(); ++m) {
    const auto [begin, end] = spans[m];
    if (begin == end) continue;
    const uint8_t number = number_of((*messages)[m].role);
    for_tokens({begin, end}, [&](size_t i) {
      if (parts[i] == 0) parts[i] = number;
    });
  }
  return parts;
}

PromptRegions RegionFinder::regions(const std::vector<uint8_t>& parts) const {
  PromptRegions result;
  if (names_.empty()) return result;
  constexpr size_t kBefore = 2;  // first, prompt
  result.names.assign(kRegionNames.begin(), kRegionNames.begin() + kBefore);
  result.names.insert(result.names.end(), names_.begin(), names_.end());
  result.names.insert(result.names.end(), kRegionNames.begin() + kBefore, kRegionNames.end());
  for (size_t i = 0; i < parts.size(); ++i) {
    const uint8_t plain = std::cmp_less(i, kFirstPositions) ? 0 : 1;
    result.of_token.push_back(parts[i] == 0 ? plain : static_cast<uint8_t>(parts[i] + kBefore - 1));
  }
  return result;
}

}  // namespace blockscope
