// Second stage of the chat-template renderer: tokens to a tree. The subset of Jinja that the
// templates of the supported families use: if / for / set / macro, expressions, filters, tests,
// method calls. Anything else (includes, arithmetic other than + - %) is refused by name.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "probe/text/template_lexer.h"

namespace blockscope {

struct TemplateExpression {
  enum class Kind {
    kString,   // text
    kInteger,  // integer
    kBoolean,  // integer 0 or 1
    kNone,
    kName,       // text
    kList,       // operands
    kAttribute,  // operands[0].text
    kItem,       // operands[0][operands[1]]
    kSlice,      // operands[0][a:b:c]; absent bounds are kNone
    kCall,       // operands[0](the rest); keyword values follow, their names in `names`
    kFilter,     // operands[0] | text(the rest)
    kTest,       // operands[0] is text; integer 1: negated
    kNot,
    kNegative,
    kBinary,       // text: + - % ~ == != < > <= >= in "not in" and or
    kConditional,  // operands[0] if operands[1] else operands[2]
  };
  Kind kind = Kind::kNone;
  std::string text;
  std::int64_t integer = 0;
  std::vector<std::unique_ptr<TemplateExpression>> operands;
  std::vector<std::string> names;
  std::size_t line = 0;
};

struct TemplateNode {
  enum class Kind {
    kText,    // text
    kOutput,  // expression
    kIf,      // conditions[i] → bodies[i]; one body more than conditions: else
    kFor,     // text in expression → bodies[0]; attribute: further names, "a, b"
    kSet,     // text (or text.attribute) = expression, or what bodies[0] renders
    kMacro,   // text(parameters) → bodies[0]; the last parameters have the defaults `conditions`
  };
  Kind kind = Kind::kText;
  std::string text;
  std::string attribute;
  std::size_t line = 0;
  std::unique_ptr<TemplateExpression> expression;
  std::vector<std::unique_ptr<TemplateExpression>> conditions;
  std::vector<std::vector<TemplateNode>> bodies;
  std::vector<std::string> parameters;
};

/// Throws CheckpointError ("<where>:<line>: ...") for anything outside the subset.
std::vector<TemplateNode> parse_template(std::string_view source, const std::string& where);

}  // namespace blockscope
