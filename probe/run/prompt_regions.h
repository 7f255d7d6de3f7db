// Names for parts of a prompt, by which traces sum attention and interventions hide keys: the roles
// of a chat template, and what --regions names.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "decode_record/schema/prompt_parts.h"
#include "probe/policies/pass_context.h"
#include "probe/text/chat_template.h"
#include "probe/text/tokenizer.h"

namespace blockscope {

/// The rules of a --regions file. Throws UsageError for a file that is no such list.
std::vector<RegionRule> read_region_rules(const std::string& path);

/// Finds the parts of prompts as --regions names them, and the messages of a chat by their roles.
class RegionFinder {
 public:
  /// `where`: the file of the rules, for messages.
  RegionFinder(std::vector<RegionRule> rules, std::string where)
      : parts_(std::move(rules), std::move(where)) {}

  /// The part of each token of a prompt, as PromptParts::parts_of. `messages`: those that `chat`
  /// rendered; null: none. The header of a turn is not part of its message.
  std::vector<uint8_t> parts_of(const std::string& prompt, const std::vector<TokenId>& ids,
                                const Tokenizer* tokenizer,
                                const std::vector<ChatMessage>* messages, const ChatTemplate* chat,
                                const ChatOptions& options);
  /// The regions of a prompt whose parts are `parts`, once all prompts were seen. A token without a
  /// part is `first` or `prompt`. No names if no prompt has parts.
  PromptRegions regions(const std::vector<uint8_t>& parts) const;

  /// The first prompt with a message whose place in the tokens is unknown; empty: none.
  const std::string& unplaced() const { return unplaced_; }

 private:
  PromptParts parts_;
  std::string unplaced_;
};

}  // namespace blockscope
