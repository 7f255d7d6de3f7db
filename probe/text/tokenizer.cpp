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

namespace {

/// The bytes of a token for the byte-level decoder. Characters are mapped back to bytes if all are
/// in the byte alphabet; else (some added tokens) the token stays as it is.
std::string alphabet_to_bytes(std::string_view token) {
  std::string bytes;
  for (std::size_t i = 0; i < token.size();) {
    const std::optional<unsigned char> byte = byte_of_alphabet(next_code_point(token, i));
    if (!byte) return std::string(token);
    bytes.push_back(static_cast<char>(*byte));
  }
  return bytes;
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

TokenId Tokenizer::Impl::next_added_id() const {
  const auto model_size = static_cast<TokenId>(model.size());
  return std::max(model_size, added.largest_id() + 1);
}

std::optional<TokenId> Tokenizer::Impl::token_to_id(std::string_view token) const {
  if (const AddedToken* found = added.find(token)) return found->id;
  return model.token_to_id(token);
}

bool Tokenizer::Impl::has_id(TokenId id) const {
  return added.find(id) != nullptr || model.has_token(id);
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
  const std::size_t bytes_of_token =
      impl_->pre_tokenizer.spells_every_byte() ? impl_->model.most_bytes_of_token() : 0;
  BpeModel::Encoder encoder(impl_->model, most);
  const WordSink encode_word = [&](std::string_view word) { encoder.append_word(word, ids); };
  impl_->added.split_raw(text, [&](const TextSegment& raw) {
    if (raw.id) return ids.push_back(*raw.id);
    const std::string normalized = impl_->normalizer.apply(raw.text);
    impl_->added.split_normalized(normalized, [&](const TextSegment& segment) {
      if (segment.id) return ids.push_back(*segment.id);
      // Checked first, because a pattern needs memory for each byte of a word.
      if (bytes_of_token > 0 && segment.text.size() / bytes_of_token > most) {
        refuse_more_tokens(most);
      }
      impl_->pre_tokenizer.apply(segment.text, encode_word);
    });
  });
  if (add_special_tokens) {
    ids.insert(ids.end(), impl_->suffix.begin(), impl_->suffix.end());
  }
  return ids;
}

std::string Tokenizer::token_bytes(TokenId id) const {
  const bool is_added = impl_->added.find(id) != nullptr;
  if (!is_added && !impl_->model.has_token(id)) return {};
  const std::string_view spelling =
      is_added ? std::string_view(impl_->added.spelling(id)) : impl_->model.id_to_token(id);
  return impl_->decoder == TokenDecoder::kByteLevel ? alphabet_to_bytes(spelling)
                                                    : std::string(spelling);
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  std::string bytes;
  bool first = true;
  for (const TokenId id : ids) {
    if (!impl_->has_id(id)) continue;
    const AddedToken* added = impl_->added.find(id);
    if (skip_special_tokens && added != nullptr &&
        impl_->added.is_special_spelling(impl_->added.spelling(id))) {
      continue;
    }
    if (impl_->decoder == TokenDecoder::kJoinWithSpace && !first) bytes.push_back(' ');
    bytes += token_bytes(id);
    first = false;
  }
  return replace_invalid_utf8(bytes);
}

std::optional<std::string> Tokenizer::id_to_token(TokenId id) const {
  if (const AddedToken* added = impl_->added.find(id)) return added->content;
  if (!impl_->model.has_token(id)) return std::nullopt;
  return std::string(impl_->model.id_to_token(id));
}

std::optional<TokenId> Tokenizer::token_to_id(std::string_view token) const {
  return impl_->token_to_id(token);
}

bool Tokenizer::is_special(TokenId id) const {
  const AddedToken* added = impl_->added.find(id);
  return added != nullptr && added->special;
}

std::size_t Tokenizer::vocab_size() const {
  return std::max(impl_->model.id_end(), static_cast<std::size_t>(impl_->added.largest_id() + 1));
}

const std::vector<AddedToken>& Tokenizer::added_tokens() const { return impl_->added.tokens(); }

const SpecialIds& Tokenizer::special_ids() const { return impl_->special_ids; }

const std::vector<std::string>& Tokenizer::warnings() const { return impl_->warnings; }

}  // namespace blockscope
