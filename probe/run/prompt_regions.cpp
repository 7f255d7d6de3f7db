#include "probe/run/prompt_regions.h"

#include <fmt/format.h>

#include <fstream>
#include <optional>
#include <utility>

#include "decode_record/base/error.h"

namespace blockscope {
namespace {

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
  return region_rules_of(std::string((std::istreambuf_iterator<char>(file)), {}), path);
}

std::vector<uint8_t> RegionFinder::parts_of(const std::string& prompt,
                                            const std::vector<TokenId>& ids,
                                            const Tokenizer* tokenizer,
                                            const std::vector<ChatMessage>* messages,
                                            const ChatTemplate* chat, const ChatOptions& options) {
  std::optional<TokenizedText> text;
  if (tokenizer != nullptr) {
    std::vector<std::string> pieces;
    for (const TokenId id : ids) pieces.push_back(tokenizer->token_bytes(id));
    text.emplace(pieces);
  }
  std::vector<uint8_t> parts = parts_.parts_of(prompt, std::vector<int64_t>(ids.begin(), ids.end()),
                                               text ? &*text : nullptr);
  if (messages == nullptr || chat == nullptr || !text) return parts;
  const auto unplaced = [&] {
    if (unplaced_.empty()) unplaced_ = prompt;
  };
  // With a normalising tokenizer, tokens don't add up to the text, so places are unknown.
  if (text->text() != chat->render(*messages, options)) {
    unplaced();
    return parts;
  }
  const auto spans = content_spans(*messages, *chat, options);
  for (size_t m = 0; m < messages->size(); ++m) {
    const auto [begin, end] = spans[m];
    const std::string& role = (*messages)[m].role;
    const bool placed = begin < end && is_part_name(role);
    if (!placed) {
      if ((*messages)[m].content.find_first_not_of(" \t\r\n") != std::string::npos) unplaced();
      continue;
    }
    const uint8_t number = parts_.number_of(role);
    for (const size_t i : text->tokens_of(begin, end)) {
      if (parts[i] == 0) parts[i] = number;
    }
  }
  return parts;
}

PromptRegions RegionFinder::regions(const std::vector<uint8_t>& parts) const {
  if (parts_.empty()) return {};
  return {parts_.region_names(), PromptParts::regions_of(parts)};
}

}  // namespace blockscope
