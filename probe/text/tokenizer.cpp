// Tokenizer: encode and decode. tokenizer_json.cpp reads the file, tokenizer_directory.cpp the rest
// of a checkpoint folder.
#include "probe/text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "decode_record/base/error.h"
#include "probe/text/tokenizer_impl.h"
#include "probe/text/unicode.h"

namespace blockscope {

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

const Vocabulary& Tokenizer::Impl::vocabulary() const {
  return std::visit([](const auto& typed) -> const Vocabulary& { return typed.vocabulary(); },
                    model);
}

std::size_t Tokenizer::Impl::most_bytes_of_token() const {
  const bool fallback = std::visit([](const auto& typed) { return typed.byte_fallback(); }, model);
  const bool every_byte = pre_tokenizer.spells_bytes() ? vocabulary().spells_alphabet()
                                                       : fallback && vocabulary().spells_bytes();
  return every_byte && !pre_tokenizer.removes_text() ? vocabulary().longest() : 0;
}

TokenId Tokenizer::Impl::next_added_id() const {
  const auto model_size = static_cast<TokenId>(vocabulary().size());
  return std::max(model_size, added.largest_id() + 1);
}

std::optional<TokenId> Tokenizer::Impl::token_to_id(std::string_view token) const {
  if (const AddedToken* found = added.find(token)) return found->id;
  return vocabulary().token_to_id(token);
}

std::string_view Tokenizer::Impl::spelling(TokenId id) const {
  return added.find(id) != nullptr ? std::string_view(added.spelling(id))
                                   : vocabulary().id_to_token(id);
}

bool Tokenizer::Impl::has_id(TokenId id) const {
  return added.find(id) != nullptr || vocabulary().has_token(id);
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, bool add_special_tokens,
                                       std::size_t most) const {
  if (const auto position = find_invalid_utf8(text)) {
    throw PromptError(fmt::format(
        "text: expected UTF-8, got a malformed sequence at byte {} (0x{:02X}). HINT: convert the "
        "prompt to UTF-8, or give it as input_ids",
        *position, static_cast<unsigned char>(text[*position])));
  }
  std::vector<TokenId> ids;
  if (add_special_tokens) ids = impl_->prefix;
  const std::size_t bytes_of_token = impl_->most_bytes_of_token();
  const auto* unigram = std::get_if<UnigramModel>(&impl_->model);
  std::optional<BpeModel::Encoder> bpe;
  if (unigram == nullptr) bpe.emplace(std::get<BpeModel>(impl_->model), most);
  const WordSink encode_word = [&](std::string_view word) {
    if (bpe) return bpe->append_word(word, ids);
    unigram->append_word(word, most, ids);
  };
  impl_->added.split_raw(text, [&](const TextSegment& raw) {
    if (raw.id) return ids.push_back(*raw.id);
    const std::string normalized = impl_->normalizer.apply(raw.text);
    impl_->added.split_normalized(normalized, [&](const TextSegment& segment) {
      if (segment.id) return ids.push_back(*segment.id);
      // Checked first, because a pattern needs memory for each byte of a word.
      if (bytes_of_token > 0 && segment.text.size() / bytes_of_token > most) {
        refuse_more_tokens(most);
      }
      const bool at_start =
          raw.text.data() == text.data() && segment.text.data() == normalized.data();
      impl_->pre_tokenizer.apply(segment.text, at_start, encode_word);
    });
  });
  if (add_special_tokens) {
    ids.insert(ids.end(), impl_->suffix.begin(), impl_->suffix.end());
  }
  return ids;
}

std::string Tokenizer::token_bytes(TokenId id) const {
  return impl_->has_id(id) ? impl_->decoder.bytes(impl_->spelling(id)) : std::string();
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  std::vector<std::string> tokens;
  for (const TokenId id : ids) {
    if (!impl_->has_id(id)) continue;
    const std::string_view spelling = impl_->spelling(id);
    if (skip_special_tokens && impl_->added.find(id) != nullptr &&
        impl_->added.is_special_spelling(std::string(spelling))) {
      continue;
    }
    tokens.emplace_back(spelling);
  }
  return impl_->decoder.text(std::move(tokens));
}

std::optional<std::string> Tokenizer::id_to_token(TokenId id) const {
  if (const AddedToken* added = impl_->added.find(id)) return added->content;
  if (!impl_->vocabulary().has_token(id)) return std::nullopt;
  return std::string(impl_->vocabulary().id_to_token(id));
}

std::optional<TokenId> Tokenizer::token_to_id(std::string_view token) const {
  return impl_->token_to_id(token);
}

bool Tokenizer::is_special(TokenId id) const {
  const AddedToken* added = impl_->added.find(id);
  return added != nullptr && added->special;
}

std::size_t Tokenizer::vocab_size() const {
  return std::max(impl_->vocabulary().id_end(),
                  static_cast<std::size_t>(impl_->added.largest_id() + 1));
}

const std::vector<AddedToken>& Tokenizer::added_tokens() const { return impl_->added.tokens(); }

const SpecialIds& Tokenizer::special_ids() const { return impl_->special_ids; }

const std::vector<std::string>& Tokenizer::warnings() const { return impl_->warnings; }

}  // namespace blockscope
