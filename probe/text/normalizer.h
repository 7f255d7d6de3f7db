// The `normalizer` of a tokenizer.json: Unicode normal forms and the simple rewrites that
// byte-level tokenizers use. Any other type is refused by name.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "probe/text/regex.h"
#include "probe/text/text_json.h"
#include "probe/text/unicode.h"

namespace blockscope {

class Normalizer {
 public:
  /// No normalizer: apply() returns its input.
  Normalizer() = default;

  /// `json` is the value of the key "normalizer", null included. Throws CheckpointError.
  static Normalizer from_json(const JsonView& node);

  /// `text` must be well-formed UTF-8; so is the result.
  std::string apply(std::string_view text) const;

 private:
  struct Lowercase {};
  struct Strip {
    bool left;
    bool right;
  };
  struct Prepend {
    std::string prefix;
  };
  struct Replace {
    Regex pattern;
    std::string content;
  };
  using Step = std::variant<NormalForm, Lowercase, Strip, Prepend, Replace>;

  void append(const JsonView& node, int depth);

  std::vector<Step> steps_;
};

/// `text` with `content` in the place of every match.
std::string replace_matches(std::string_view text, const Regex& pattern,
                            const std::string& content);

/// Reads {"String": s} or {"Regex": s}, as Replace and Split spell patterns.
Regex read_pattern(const JsonView& node);

/// The largest nesting depth of Sequences.
inline constexpr int kMaxComponentDepth = 16;

}  // namespace blockscope
