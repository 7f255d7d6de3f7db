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

#include "probe/text/text_json.h"
#include "probe/text/tokenizer.h"

namespace blockscope {

/// The largest accepted id: 16 times the largest vocabulary in use. A damaged id can't make tables
/// of gigabytes.
inline constexpr TokenId kMaxTokenId = (1 << 22) - 1;

[[noreturn]] void refuse_more_tokens(std::size_t most);

class BpeModel {
 public:
  /// `json` is the value of the key "model". Throws CheckpointError.
  static BpeModel from_json(const JsonView& json);

  std::optional<TokenId> token_to_id(std::string_view token) const;
  /// Empty if the id has no token; then has_token(id) is false.
  std::string_view id_to_token(TokenId id) const;
  bool has_token(TokenId id) const;

  /// Number of tokens; ids need not be contiguous.
  std::size_t size() const { return vocab_.size(); }
  /// Largest id + 1.
  std::size_t id_end() const { return tokens_.size(); }
  /// The largest number of text bytes of one token, if every byte has its own token. 0: some bytes
  /// have no token, so a word with them may give no token.
  std::size_t most_bytes_of_token() const { return spells_every_byte_ ? longest_ : 0; }

  /// Encodes many words and caches the short ones. Each call of Tokenizer::encode has its own.
  class Encoder {
   public:
    /// `most`: the largest number of ids that the caller can use.
    Encoder(const BpeModel& model, std::size_t most) : model_(model), most_(most) {}
    /// Appends the ids of one word. A character outside the vocabulary becomes the unknown token,
    /// or nothing if there is none, as in the package. Throws PromptError when there are more than
    /// `most` ids.
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
    void push_candidate(std::int32_t left, std::int32_t right);
    void merge_all();

    const BpeModel& model_;
    std::size_t most_;
    std::vector<Symbol> symbols_;
    std::vector<Candidate> queue_;  // a heap
    std::unordered_map<std::string, std::vector<TokenId>> cache_;
  };

 private:
  struct StringHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>{}(text);
    }
  };
  struct Merge {
    std::uint32_t rank;
    TokenId merged;
  };

  void read_vocab(const JsonView& json);
  void read_merges(const JsonView& json);
  const Merge* find_merge(TokenId left, TokenId right) const;

  std::unordered_map<std::string, TokenId, StringHash, std::equal_to<>> vocab_;
  std::size_t longest_ = 1;  // most bytes of a token in the byte alphabet, and so of its text
  bool spells_every_byte_ = false;
  std::vector<const std::string*> tokens_;  // [id_end], keys of vocab_, null where none
  std::unordered_map<std::uint64_t, Merge> merges_;
  std::string unk_token_;  // empty: none
  std::string where_;
  bool fuse_unk_ = false;
  bool ignore_merges_ = false;
};

}  // namespace blockscope
