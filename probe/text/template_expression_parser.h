// The expressions of the chat-template parser: a cursor over the tokens, and the operators of Jinja
// from the loosest binding to the tightest. template_parser.cpp adds the statements. Internal to
// text.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "decode_record/base/error.h"
#include "probe/text/template_parser.h"

namespace blockscope {

class TemplateExpressionParser {
 protected:
  using Expression = TemplateExpression;
  using ExpressionPtr = std::unique_ptr<Expression>;
  using Kind = Expression::Kind;

  TemplateExpressionParser(std::vector<TemplateToken> tokens, const std::string& where)
      : tokens_(std::move(tokens)), where_(where) {}

  ExpressionPtr parse_expression();
  /// A statement begins: its expressions are counted from here.
  void begin_tag() { tag_size_ = 0; }

  const TemplateToken& current() const { return tokens_[position_]; }
  const TemplateToken& following() const {
    return tokens_[std::min(position_ + 1, tokens_.size() - 1)];
  }
  void advance() {
    if (position_ + 1 < tokens_.size()) ++position_;
  }

  bool in_macro_ = false;  // jinja2 has names of its own there

  [[noreturn]] void refuse(const std::string& what) const {
    throw CheckpointError(
        fmt::format("{}:{}: expected a chat template of the supported subset of Jinja, got {}. {}",
                    where_, current().line, what, kTemplateAdvice));
  }

  bool at_operator(std::string_view text) const {
    return current().kind == TemplateTokenKind::kOperator && current().text == text;
  }
  bool at_name(std::string_view text) const {
    return current().kind == TemplateTokenKind::kName && current().text == text;
  }
  bool accept_operator(std::string_view text) { return at_operator(text) && (advance(), true); }
  bool accept_name(std::string_view text) { return at_name(text) && (advance(), true); }
  void expect_operator(std::string_view text) {
    if (!accept_operator(text))
      refuse(fmt::format("\"{}\" instead of \"{}\"", current().text, text));
  }
  std::string expect_name() {
    if (current().kind != TemplateTokenKind::kName) {
      refuse(fmt::format("\"{}\" instead of a name", current().text));
    }
    std::string name = current().text;
    advance();
    return name;
  }
  void expect(TemplateTokenKind kind) {
    if (current().kind != kind)
      refuse(fmt::format("\"{}\" before the end of a tag", current().text));
    advance();
  }

  struct Nesting {
    explicit Nesting(TemplateExpressionParser& owner) : parser(owner) {
      if (++parser.depth_ > kMaxDepth) parser.refuse("deep nesting");
    }
    ~Nesting() { --parser.depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;
    TemplateExpressionParser& parser;
  };

  ExpressionPtr make(Kind kind, std::string text = {}) {
    if (++tag_size_ > kMaxTagSize) refuse("a tag of more than 1000 parts");
    auto expression = std::make_unique<Expression>();
    expression->kind = kind;
    expression->text = std::move(text);
    expression->line = current().line;
    return expression;
  }
  ExpressionPtr make_binary(std::string text, ExpressionPtr left, ExpressionPtr right) {
    ExpressionPtr expression = make(Kind::kBinary, std::move(text));
    expression->operands.push_back(std::move(left));
    expression->operands.push_back(std::move(right));
    return expression;
  }

 private:
  static constexpr int kMaxDepth = 64;  // of nested blocks and expressions; real ones stay below 15
  static constexpr int kMaxTagSize = 1000;  // bounds the depth of chains such as a + a + a, too

  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_comparison();
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concatenation();
  ExpressionPtr parse_remainder();
  ExpressionPtr parse_unary();
  ExpressionPtr parse_primary();
  ExpressionPtr parse_name();
  ExpressionPtr parse_postfix(ExpressionPtr value);
  ExpressionPtr parse_subscript(ExpressionPtr value);
  void parse_arguments(Expression& call);
  ExpressionPtr parse_filters(ExpressionPtr value);

  std::vector<TemplateToken> tokens_;
  const std::string& where_;
  std::size_t position_ = 0;
  int depth_ = 0;
  int tag_size_ = 0;
};

}  // namespace blockscope
