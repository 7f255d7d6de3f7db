// Tokens that are matched in the text before pre-tokenization and BPE: special tokens such as
// `<|im_end|>`, and tokens that were added after training. Matching is leftmost-longest, first in
// the raw text (normalized = false), then in the normalised rest.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "probe/text/normalizer.h"
#include "probe/text/tokenizer.h"

namespace blockscope {

/// A stretch of text between added tokens, or one added token.
struct TextSegment {
  std::string_view text;      // empty for a token
  std::optional<TokenId> id;  // the token
};

using SegmentSink = std::function<void(const TextSegment&)>;

class AddedVocabulary {
 public:
  /// Adds a token, or replaces the one with the same content. Call index() after the last one.
  void add(AddedToken token);

  /// Builds the matchers; `normalizer` is the tokenizer's. Returns warnings.
  std::vector<std::string> index(const Normalizer& normalizer);

  /// Both hand the segments of `text` to `sink`, from left to right.
  void split_raw(std::string_view text, const SegmentSink& sink) const;
  void split_normalized(std::string_view text, const SegmentSink& sink) const;

  const AddedToken* find(std::string_view content) const;
  const AddedToken* find(TokenId id) const;
  /// The token's spelling for decoders: its normalised form where matching uses that.
  const std::string& spelling(TokenId id) const;
  bool is_special_spelling(const std::string& spelling) const;

  /// In order of id, after index().
  const std::vector<AddedToken>& tokens() const { return tokens_; }
  /// Largest id, -1 if there are no tokens.
  TokenId largest_id() const;

 private:
  /// A trie over bytes; `token` indexes tokens_.
  struct Matcher {
    struct Node {
      std::map<char, std::size_t> next;
      std::optional<std::size_t> token;
    };
    std::vector<Node> nodes{1};

    /// Returns false if the pattern was added before.
    bool add(std::string_view pattern, std::size_t token);
  };
  struct Match {
    std::size_t end;
    std::size_t token;
  };

  static std::optional<Match> longest_match(const Matcher& matcher, std::string_view text,
                                            std::size_t begin);
  void split(std::string_view text, const Matcher& matcher, const SegmentSink& sink) const;

  std::vector<AddedToken> tokens_;
  std::unordered_map<std::string, std::size_t> by_content_;
  std::unordered_map<TokenId, std::size_t> by_id_;
  std::unordered_map<TokenId, std::string> spellings_;
  std::set<std::string> special_contents_;
  Matcher raw_;
  Matcher normalized_;
};

}  // namespace blockscope
