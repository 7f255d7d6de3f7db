// The `decoder` of a tokenizer.json: from tokens to text, in steps that each change a list of
// strings. Supported: ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip, Sequence; any other
// type is refused by name. Without a decoder, tokens are joined with spaces.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "probe/text/pre_tokenizer.h"
#include "probe/text/regex.h"
#include "probe/text/text_json.h"

namespace blockscope {

class TokenDecoder {
 public:
  TokenDecoder() = default;

  /// `json` is the value of the key "decoder", null included. Throws CheckpointError.
  static TokenDecoder from_json(const JsonView& node);

  /// The text of tokens, well-formed UTF-8.
  std::string text(std::vector<std::string> tokens) const;
  /// What one token adds to a text that has begun; its bytes need not be well-formed UTF-8.
  std::string bytes(std::string_view token) const;

 private:
  struct ByteLevel {};
  struct ByteFallback {};
  struct Fuse {};
  struct Replace {
    Regex pattern;
    std::string content;
  };
  struct Strip {
    std::string content;  // one character
    std::size_t start;    // most copies that are taken away at the beginning of a string
    std::size_t stop;     // and at its end
  };
  using Step = std::variant<ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace>;
  using Tokens = std::vector<std::string>;

  void append(const JsonView& node, int depth);
  static Tokens run(const ByteLevel& step, Tokens tokens);
  static Tokens run(const ByteFallback& step, Tokens tokens);
  static Tokens run(const Fuse& step, Tokens tokens);
  static Tokens run(const Replace& step, Tokens tokens);
  static Tokens run(const Strip& step, Tokens tokens);
  static Tokens run(const Metaspace& step, Tokens tokens);

  std::vector<Step> steps_;
  bool joins_with_space_ = true;
};

}  // namespace blockscope
