// Names for parts of a prompt, by which traces sum attention and interventions hide keys: the roles
// of a chat template, and what --regions names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "probe/policies/pass_context.h"
#include "probe/text/chat_template.h"
#include "probe/text/tokenizer.h"

namespace blockscope {

/// One entry of a --regions file: {"region": "question", "between": ["Q:", "A:"]}. It has one of
/// `positions` ("4-99"), `token` (an id), `text`, or `between` (two texts).
struct RegionRule {
  std::string region;
  std::vector<int64_t> positions;  // ascending; empty: another kind
  int64_t token = -1;
  std::string text;
  std::string from, to;  // between: the text after `from`, before the next `to`
};

/// Throws UsageError for a file that is no such list.
std::vector<RegionRule> read_region_rules(const std::string& path);

/// Collects the parts of all prompts of a run.
class RegionFinder {
 public:
  /// `where`: the file of the rules, for messages.
  RegionFinder(std::vector<RegionRule> rules, std::string where);

  /// The part of each token of a prompt: 0: none, else an index into names() + 1. `messages`: those
  /// that `chat` rendered; null: none. The header of a turn is not part of its message. Throws
  /// UsageError for a rule that fits no token, or two that fit the same.
  std::vector<uint8_t> parts_of(const std::string& prompt, const std::vector<TokenId>& ids,
                                const Tokenizer* tokenizer,
                                const std::vector<ChatMessage>* messages, const ChatTemplate* chat,
                                const ChatOptions& options);
  /// The regions of a prompt whose parts are `parts`, once all prompts were seen. A token without a
  /// part is `first` or `prompt`. No names if no prompt has parts.
  PromptRegions regions(const std::vector<uint8_t>& parts) const;

 private:
  struct Span {
    size_t begin = 0, end = 0;  // bytes of the prompt's text
  };
  uint8_t number_of(const std::string& name);
  std::vector<Span> spans_of(const RegionRule& rule, const std::string& text) const;
  [[noreturn]] void refuse(const RegionRule& rule, const std::string& prompt,
                           const std::string& why) const;

  std::vector<RegionRule> rules_;
  std::string where_;
  std::vector<std::string> names_;
};

}  // namespace blockscope
