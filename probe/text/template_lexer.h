// First stage of the chat-template renderer: the text of a Jinja template as a list of tokens.
// White-space control is already applied, as `transformers` configures Jinja (trim_blocks,
// lstrip_blocks, one trailing newline dropped).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace blockscope {

/// What a user can do about a template that can't be evaluated.
inline constexpr std::string_view kTemplateAdvice =
    "HINT: render the prompt elsewhere and pass it as text, or its token ids as input_ids";

enum class TemplateTokenKind {
  kText,         // output as it is
  kBeginBlock,   // {%
  kEndBlock,     // %}
  kBeginOutput,  // {{
  kEndOutput,    // }}
  kName,
  kString,  // text holds the value, escapes resolved
  kInteger,
  kOperator,  // one of ( ) [ ] { } . , : | ~ + - * / % = == != < > <= >=
  kEnd,
};

struct TemplateToken {
  TemplateTokenKind kind = TemplateTokenKind::kEnd;
  std::string text;
  std::size_t line = 0;  // 1-based
};

/// Throws CheckpointError ("<where>:<line>: ...") for text that is not a template.
std::vector<TemplateToken> lex_template(std::string_view source, const std::string& where);

}  // namespace blockscope
