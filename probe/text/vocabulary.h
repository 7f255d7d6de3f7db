// The tokens of a tokenizer's model and their ids, which need not be contiguous.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "probe/text/text_json.h"
#include "probe/text/tokenizer.h"

namespace blockscope {

/// The largest accepted id: 16 times the largest vocabulary in use. A damaged id can't make tables
/// of gigabytes.
inline constexpr TokenId kMaxTokenId = (1 << 22) - 1;

class Vocabulary {
 public:
  Vocabulary() = default;
  /// `json` names the key in errors. Throws CheckpointError if there is no token, or if two have
  /// the same id.
  Vocabulary(std::unordered_map<std::string, TokenId> tokens, const JsonView& json);
  Vocabulary(Vocabulary&&) noexcept = default;
  Vocabulary& operator=(Vocabulary&&) noexcept = default;
  Vocabulary(const Vocabulary&) = delete;  // tokens_ points into ids_
  Vocabulary& operator=(const Vocabulary&) = delete;

  std::optional<TokenId> token_to_id(std::string_view token) const;
  /// Empty if the id has no token; then has_token(id) is false.
  std::string_view id_to_token(TokenId id) const;
  bool has_token(TokenId id) const;

  std::size_t size() const { return ids_.size(); }       // number of tokens
  std::size_t id_end() const { return tokens_.size(); }  // largest id + 1
  std::size_t longest() const { return longest_; }       // most bytes of a token's spelling
  /// Whether every character of GPT-2's byte alphabet is a token.
  bool spells_alphabet() const { return spells_alphabet_; }
  /// Whether every byte has a token of byte fallback.
  bool spells_bytes() const { return spells_bytes_; }

  /// Appends the byte tokens ("<0xE2>", ...) of a character. Returns false, and appends nothing, if
  /// one of its bytes has none.
  bool append_bytes(std::string_view character, std::vector<TokenId>& ids) const;

 private:
  struct StringHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>{}(text);
    }
  };

  std::unordered_map<std::string, TokenId, StringHash, std::equal_to<>> ids_;
  std::vector<const std::string*> tokens_;  // [id_end], keys of ids_, null where none
  std::array<TokenId, 256> bytes_{};        // the tokens of byte fallback, -1 where none
  std::size_t longest_ = 1;
  bool spells_alphabet_ = false;
  bool spells_bytes_ = false;
};

/// "<0xE2>" -> 0xE2; nullopt for any other token.
std::optional<unsigned char> byte_of_fallback(std::string_view token);

[[noreturn]] void refuse_more_tokens(std::size_t most);

/// Throws CheckpointError: the text has a character that needs an unknown token, and `key` names
/// none.
[[noreturn]] void refuse_without_unknown(const std::string& where, const std::string& key,
                                         std::string_view got);

}  // namespace blockscope
