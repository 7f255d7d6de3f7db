// The `model` of a tokenizer.json when its type is BPE: a vocabulary and ranked merges.
// encode_word merges the pair of lowest rank first (leftmost among equals) until none is left, as
// in "Neural Machine Translation of Rare Words with Subword Units" (Sennrich et al., 2016), with a
// priority queue: O(n log n) for a word of n characters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "probe/text/vocabulary.h"

namespace blockscope {

class BpeModel {
 public:
  /// `json` is the value of the key "model". Throws CheckpointError.
  static BpeModel from_json(const JsonView& json);

  const Vocabulary& vocabulary() const { return vocabulary_; }
  bool byte_fallback() const { return byte_fallback_; }

  /// Encodes many words and caches the short ones. Each call of Tokenizer::encode has its own.
  class Encoder {
   public:
    /// `most`: the largest number of ids that the caller can use.
    Encoder(const BpeModel& model, std::size_t most) : model_(model), most_(most) {}
    /// Appends the ids of one word. A character outside the vocabulary becomes its byte tokens,
    /// else the unknown token, or nothing if there is none, as in the package. Throws PromptError
    /// when there are more than `most` ids.
    void append_word(std::string_view word, std::vector<TokenId>& ids);

   private:
    struct Symbol {
      TokenId id;
      std::int32_t previous;  // index, -1 at the start
      std::int32_t next;      // index, -1 at the end
      bool alive;
    };
    struct Candidate {
      std::uint32_t rank;
      std::int32_t position;
      TokenId merged;
    };
    static bool is_later(const Candidate& left, const Candidate& right);
    void split_characters(std::string_view word);
    void push_symbol(TokenId id);
    void push_candidate(std::int32_t left, std::int32_t right);
    void merge_all();

    const BpeModel& model_;
    std::size_t most_;
    std::vector<Symbol> symbols_;
    std::vector<Candidate> queue_;  // a heap
    std::unordered_map<std::string, std::vector<TokenId>> cache_;
  };

 private:
  struct Merge {
    std::uint32_t rank;
    TokenId merged;
  };

  void read_merges(const JsonView& json);
  const Merge* find_merge(TokenId left, TokenId right) const;

  Vocabulary vocabulary_;
  std::unordered_map<std::uint64_t, Merge> merges_;
  std::string unk_token_;  // empty: none
  std::string where_;
  bool fuse_unk_ = false;
  bool ignore_merges_ = false;
  bool byte_fallback_ = false;
};

}  // namespace blockscope
