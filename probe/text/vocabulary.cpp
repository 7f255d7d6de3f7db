// See vocabulary.h.
#include "probe/text/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "decode_record/base/error.h"
#include "probe/text/unicode.h"

namespace blockscope {

void refuse_more_tokens(std::size_t most) {
  throw PromptError(
      fmt::format("text: expected at most {} tokens, as many as the model has positions, got more. "
                  "HINT: shorten the text",
                  most));
}

void refuse_without_unknown(const std::string& where, const std::string& key,
                            std::string_view got) {
  throw CheckpointError(fmt::format(
      "{}: key {}: expected a token of model.vocab, got {}, and the text has a character "
      "that needs it",
      where, key, got));
}

std::optional<unsigned char> byte_of_fallback(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  unsigned char byte = 0;
  const char* end = token.data() + 5;
  const auto [rest, code] = std::from_chars(token.data() + 3, end, byte, 16);
  return code == std::errc() && rest == end ? std::optional(byte) : std::nullopt;
}

Vocabulary::Vocabulary(std::unordered_map<std::string, TokenId> tokens, const JsonView& json) {
  if (tokens.empty()) json.fail("at least one token");
  ids_.reserve(tokens.size());
  TokenId largest = 0;
  for (auto& [token, id] : tokens) {
    largest = std::max(largest, id);
    longest_ = std::max(longest_, token.size());
    ids_.emplace(token, id);
  }
  tokens_.assign(static_cast<std::size_t>(largest) + 1, nullptr);
  for (const auto& [token, id] : ids_) {
    const std::string*& slot = tokens_[static_cast<std::size_t>(id)];
    if (slot != nullptr) {
      throw CheckpointError(
          fmt::format("{}: expected different ids, got {} for both \"{}\" and "
                      "\"{}\"",
                      json.place(), id, std::min(token, *slot), std::max(token, *slot)));
    }
    slot = &token;
  }
  spells_alphabet_ = spells_bytes_ = true;
  for (unsigned byte = 0; byte < bytes_.size(); ++byte) {
    std::string letter;
    append_byte_alphabet(letter, static_cast<unsigned char>(byte));
    spells_alphabet_ = spells_alphabet_ && ids_.contains(letter);
    bytes_[byte] = token_to_id(fmt::format("<0x{:02X}>", byte)).value_or(-1);
    spells_bytes_ = spells_bytes_ && bytes_[byte] >= 0;
  }
}

std::optional<TokenId> Vocabulary::token_to_id(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

bool Vocabulary::has_token(TokenId id) const {
  return id >= 0 && static_cast<std::size_t>(id) < tokens_.size() &&
         tokens_[static_cast<std::size_t>(id)] != nullptr;
}

std::string_view Vocabulary::id_to_token(TokenId id) const {
  return has_token(id) ? std::string_view(*tokens_[static_cast<std::size_t>(id)])
                       : std::string_view();
}

bool Vocabulary::append_bytes(std::string_view character, std::vector<TokenId>& ids) const {
  const auto token_of = [&](char byte) { return bytes_[static_cast<unsigned char>(byte)]; };
  if (!std::ranges::all_of(character, [&](char byte) { return token_of(byte) >= 0; })) return false;
  for (const char byte : character) ids.push_back(token_of(byte));
  return true;
}

}  // namespace blockscope
