// The `model` of a tokenizer.json when its type is Unigram: pieces with log probabilities. A word
// becomes the pieces with the largest sum, found by dynamic programming ("Subword Regularization",
// Kudo 2018, section 3.2). Same sums, same order and same ties as the `tokenizers` package.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "probe/text/vocabulary.h"

namespace blockscope {

class UnigramModel {
 public:
  /// `json` is the value of the key "model". Throws CheckpointError.
  static UnigramModel from_json(const JsonView& json);

  const Vocabulary& vocabulary() const { return vocabulary_; }
  bool byte_fallback() const { return byte_fallback_; }

  /// Appends the ids of one word. Neighbouring characters without a piece are one unknown token, or
  /// byte tokens. Throws PromptError when there are more than `most` ids.
  void append_word(std::string_view word, std::size_t most, std::vector<TokenId>& ids) const;

 private:
  /// The best way to a position of the word.
  struct Best {
    double score = 0.0;
    std::optional<std::size_t> start{};  // where its last piece starts; unset: not reached
    TokenId id = 0;
  };
  std::vector<Best> best_paths(std::string_view word) const;
  void append_piece(std::string_view piece, std::vector<TokenId>& ids) const;

  Vocabulary vocabulary_;
  std::vector<std::pair<std::string, TokenId>> sorted_;  // the pieces, to find those of a prefix
  std::vector<double> scores_;                           // by id
  double unknown_score_ = 0.0;
  std::optional<TokenId> unknown_;
  bool byte_fallback_ = false;
  std::string where_;
};

}  // namespace blockscope
