// The inside of Tokenizer. The code that reads a tokenizer.json and the code that merges the rest
// of a checkpoint folder into it share it.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "probe/text/added_vocabulary.h"
#include "probe/text/bpe_model.h"
#include "probe/text/normalizer.h"
#include "probe/text/pre_tokenizer.h"
#include "probe/text/token_decoder.h"
#include "probe/text/tokenizer.h"
#include "probe/text/unigram_model.h"

namespace blockscope {

struct Tokenizer::Impl {
  std::string where;
  std::variant<BpeModel, UnigramModel> model;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  TokenDecoder decoder;
  std::vector<TokenId> prefix;  // the post-processor adds prefix and suffix to the text
  std::vector<TokenId> suffix;
  AddedVocabulary added;
  SpecialIds special_ids;
  std::vector<std::string> warnings;

  const Vocabulary& vocabulary() const;
  /// The largest number of text bytes of one token, if every byte of a text is in a token. 0: some
  /// text may give no token.
  std::size_t most_bytes_of_token() const;

  /// Adds one token and checks its id against the vocabulary. `place` names file and key. Throws
  /// CheckpointError for a contradiction. Call finish_added_tokens() after the last token.
  void add_token(const AddedToken& token, const std::string& place);
  void finish_added_tokens();

  /// The id that the package would give to a new token.
  TokenId next_added_id() const;
  std::optional<TokenId> token_to_id(std::string_view token) const;
  bool has_id(TokenId id) const;
  /// The spelling of a token that has_id() for the decoder.
  std::string_view spelling(TokenId id) const;
};

/// Reads the flags that tokenizer.json and added_tokens_decoder share; id and content are set.
AddedToken read_added_token(const JsonView& json, TokenId id);

}  // namespace blockscope
