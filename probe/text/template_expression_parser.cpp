#include "probe/text/template_expression_parser.h"

#include <charconv>

namespace blockscope {

using ExpressionPtr = std::unique_ptr<TemplateExpression>;

ExpressionPtr TemplateExpressionParser::parse_expression() {
  const Nesting nesting(*this);
  ExpressionPtr value = parse_or();
  while (accept_name("if")) {
    ExpressionPtr conditional = make(Kind::kConditional);
    conditional->operands.push_back(std::move(value));
    conditional->operands.push_back(parse_or());
    if (accept_name("else")) conditional->operands.push_back(parse_expression());
    value = std::move(conditional);
  }
  return value;
}

ExpressionPtr TemplateExpressionParser::parse_or() {
  ExpressionPtr left = parse_and();
  while (accept_name("or")) left = make_binary("or", std::move(left), parse_and());
  return left;
}

ExpressionPtr TemplateExpressionParser::parse_and() {
  ExpressionPtr left = parse_not();
  while (accept_name("and")) left = make_binary("and", std::move(left), parse_not());
  return left;
}

ExpressionPtr TemplateExpressionParser::parse_not() {
  if (!at_name("not")) return parse_comparison();
  const Nesting nesting(*this);
  advance();
  ExpressionPtr expression = make(Kind::kNot);
  expression->operands.push_back(parse_not());
  return expression;
}

ExpressionPtr TemplateExpressionParser::parse_comparison() {
  ExpressionPtr left = parse_sum();
  bool compared = false;
  while (true) {
    std::string name;
    for (const std::string_view candidate : {"==", "!=", "<", ">", "<=", ">="}) {
      if (at_operator(candidate)) name = candidate;
    }
    if (at_name("in")) name = "in";
    if (at_name("not") && following().text == "in") name = "not in";
    if (name.empty()) return left;
    if (compared) refuse("a chain of comparisons");
    compared = true;
    advance();
    if (name == "not in") advance();
    left = make_binary(name, std::move(left), parse_sum());
  }
}

ExpressionPtr TemplateExpressionParser::parse_sum() {
  ExpressionPtr left = parse_concatenation();
  while (at_operator("+") || at_operator("-")) {
    const std::string name = current().text;
    advance();
    left = make_binary(name, std::move(left), parse_concatenation());
  }
  return left;
}

ExpressionPtr TemplateExpressionParser::parse_concatenation() {
  ExpressionPtr left = parse_remainder();
  while (accept_operator("~")) left = make_binary("~", std::move(left), parse_remainder());
  return left;
}

ExpressionPtr TemplateExpressionParser::parse_remainder() {
  ExpressionPtr left = parse_unary();
  while (accept_operator("%")) left = make_binary("%", std::move(left), parse_unary());
  return left;
}

ExpressionPtr TemplateExpressionParser::parse_unary() {
  const Nesting nesting(*this);
  ExpressionPtr value;
  if (accept_operator("-")) {
    value = make(Kind::kNegative);
    value->operands.push_back(parse_unary());
  } else {
    value = parse_postfix(parse_primary());
  }
  return parse_filters(std::move(value));
}

ExpressionPtr TemplateExpressionParser::parse_primary() {
  const TemplateToken token = current();
  if (token.kind == TemplateTokenKind::kString) {
    ExpressionPtr value = make(Kind::kString);
    while (current().kind == TemplateTokenKind::kString) {  // adjacent literals are joined
      value->text += current().text;
      advance();
    }
    return value;
  }
  if (token.kind == TemplateTokenKind::kInteger) {
    ExpressionPtr value = make(Kind::kInteger);
    std::from_chars(token.text.data(), token.text.data() + token.text.size(), value->integer);
    advance();
    return value;
  }
  if (token.kind == TemplateTokenKind::kName) return parse_name();
  if (accept_operator("(")) {
    ExpressionPtr value = parse_expression();
    expect_operator(")");
    return value;
  }
  if (accept_operator("[")) {
    ExpressionPtr value = make(Kind::kList);
    while (!accept_operator("]")) {
      value->operands.push_back(parse_expression());
      if (!at_operator("]")) expect_operator(",");
    }
    return value;
  }
  refuse(fmt::format("\"{}\" in an expression", token.text));
}

ExpressionPtr TemplateExpressionParser::parse_name() {
  const std::string name = expect_name();
  if (name == "none" || name == "None") return make(Kind::kNone);
  const bool is_true = name == "true" || name == "True";
  if (is_true || name == "false" || name == "False") {
    ExpressionPtr value = make(Kind::kBoolean);
    value->integer = is_true ? 1 : 0;
    return value;
  }
  if (in_macro_ && (name == "varargs" || name == "kwargs" || name == "caller")) {
    refuse(fmt::format("\"{}\" in a macro", name));
  }
  return make(Kind::kName, name);
}

ExpressionPtr TemplateExpressionParser::parse_postfix(ExpressionPtr value) {
  while (true) {
    ExpressionPtr outer;
    if (accept_operator(".")) {
      outer = make(Kind::kAttribute, expect_name());
      outer->operands.push_back(std::move(value));
    } else if (accept_operator("[")) {
      outer = parse_subscript(std::move(value));
    } else if (at_operator("(")) {
      outer = make(Kind::kCall);
      outer->operands.push_back(std::move(value));
      parse_arguments(*outer);
    } else {
      return value;
    }
    value = std::move(outer);
  }
}

ExpressionPtr TemplateExpressionParser::parse_subscript(ExpressionPtr value) {
  std::vector<ExpressionPtr> parts;
  bool is_slice = false;
  ExpressionPtr part = make(Kind::kNone);
  while (!accept_operator("]")) {
    if (accept_operator(":")) {
      is_slice = true;
      parts.push_back(std::move(part));
      part = make(Kind::kNone);
    } else {
      part = parse_expression();
      if (!at_operator(":") && !at_operator("]")) refuse("a subscript of several values");
    }
  }
  parts.push_back(std::move(part));
  if (parts.size() > 3) refuse("a slice of more than three parts");
  if (is_slice && parts.size() == 2) parts.push_back(make(Kind::kNone));
  ExpressionPtr outer = make(is_slice ? Kind::kSlice : Kind::kItem);
  outer->operands.push_back(std::move(value));
  for (ExpressionPtr& operand : parts) outer->operands.push_back(std::move(operand));
  return outer;
}

void TemplateExpressionParser::parse_arguments(Expression& call) {
  expect_operator("(");
  while (!accept_operator(")")) {
    if (current().kind == TemplateTokenKind::kName && following().text == "=" &&
        following().kind == TemplateTokenKind::kOperator) {
      call.names.push_back(expect_name());
      advance();
    } else if (!call.names.empty()) {
      refuse("a positional argument after a named one");
    }
    call.operands.push_back(parse_expression());
    if (!at_operator(")")) expect_operator(",");
  }
}

ExpressionPtr TemplateExpressionParser::parse_filters(ExpressionPtr value) {
  while (true) {
    ExpressionPtr outer;
    if (accept_operator("|")) {
      outer = make(Kind::kFilter, expect_name());
      outer->operands.push_back(std::move(value));
      if (at_operator("(")) parse_arguments(*outer);
    } else if (accept_name("is")) {
      const bool negated = accept_name("not");
      outer = make(Kind::kTest, expect_name());
      outer->integer = negated ? 1 : 0;
      outer->operands.push_back(std::move(value));
      if (at_operator("(")) refuse("a test with arguments");
    } else {
      return value;
    }
    value = std::move(outer);
  }
}

}  // namespace blockscope
