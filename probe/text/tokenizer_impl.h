// The inside of Tokenizer. The code that reads a tokenizer.json and the code that merges the rest
// of a checkpoint folder into it share it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "probe/text/added_vocabulary.h"
#include "probe/text/bpe_model.h"
#include "probe/text/normalizer.h"
#include "probe/text/pre_tokenizer.h"
#include "probe/text/tokenizer.h"

namespace blockscope {

enum class TokenDecoder {
  kByteLevel,      // characters of the byte alphabet back to bytes
  kConcatenate,    // Fuse
  kJoinWithSpace,  // no decoder: the package joins with a space
};

struct Tokenizer::Impl {
  std::string where;
  BpeModel model;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  TokenDecoder decoder = TokenDecoder::kJoinWithSpace;
  std::vector<TokenId> prefix;  // the post-processor adds prefix and suffix to the text
  std::vector<TokenId> suffix;
  AddedVocabulary added;
  SpecialIds special_ids;
  std::vector<std::string> warnings;

  /// Adds one token and checks its id against the vocabulary. `place` names file and key. Throws
  /// CheckpointError for a contradiction. Call finish_added_tokens() after the last token.
  void add_token(const AddedToken& token, const std::string& place);
  void finish_added_tokens();

  /// The id that the package would give to a new token.
  TokenId next_added_id() const;
  std::optional<TokenId> token_to_id(std::string_view token) const;
  bool has_id(TokenId id) const;
};

/// Reads the flags that tokenizer.json and added_tokens_decoder share; id and content are set.
AddedToken read_added_token(const JsonView& json, TokenId id);

}  // namespace blockscope
