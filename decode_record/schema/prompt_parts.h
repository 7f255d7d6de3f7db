// Names for parts of a prompt, by which traces sum attention and interventions hide keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace blockscope {

/// One entry of a list of regions: {"region": "question", "between": ["Q:", "A:"]}. It has one of
/// `positions` ("4-99"), `token` (an id), `text`, or `between` (two texts).
struct RegionRule {
  std::string region;
  std::vector<std::int64_t> positions;  ///< ascending; empty: another kind
  std::int64_t token = -1;
  std::string text;
  std::string from, to;  ///< between: the text after `from`, before the next `to`
};

/// The rules of a JSON text. `where`: where it stands, for messages. Throws UsageError for a text
/// that is no such list.
std::vector<RegionRule> region_rules_of(const std::string& text, const std::string& where);

/// The text that tokens add up to, and their places in it.
class TokenizedText {
 public:
  explicit TokenizedText(const std::vector<std::string>& pieces);
  const std::string& text() const { return text_; }
  /// The tokens with a byte of [begin, end).
  std::vector<std::size_t> tokens_of(std::size_t begin, std::size_t end) const;

 private:
  std::string text_;
  std::vector<std::size_t> starts_;  // of the tokens, and the end of the last one
};

/// The parts of a run's prompts: finds them by rules, and numbers their names.
class PromptParts {
 public:
  /// `where`: where the rules stand, for messages.
  PromptParts(std::vector<RegionRule> rules, std::string where);

  /// The part of each token of a prompt: 0: none, else number_of() its name. `prompt`: its name,
  /// for messages. `text`: null without a tokenizer. Throws UsageError for a rule that fits no
  /// token, or two that fit the same.
  std::vector<std::uint8_t> parts_of(const std::string& prompt, std::span<const std::int64_t> ids,
                                     const TokenizedText* text) const;
  /// From 1; a name that is new gets the next number. `name`: is_part_name().
  std::uint8_t number_of(const std::string& name);
  bool empty() const { return names_.empty(); }

  /// All regions of the run: first, prompt, the parts, answer, decided, masks, after.
  std::vector<std::string> region_names() const;
  /// Of each token, indices into region_names(). A token without a part is `first` or `prompt`.
  static std::vector<std::uint8_t> regions_of(const std::vector<std::uint8_t>& parts);

 private:
  [[noreturn]] void refuse(const RegionRule& rule, const std::string& prompt,
                           const std::string& why) const;

  std::vector<RegionRule> rules_;
  std::string where_;
  std::vector<std::string> names_;
};

}  // namespace blockscope
