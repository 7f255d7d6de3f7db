// See template_parser.h.
#include "probe/text/template_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "decode_record/error.h"

namespace blockscope {

namespace {

using Expression = TemplateExpression;
using ExpressionPtr = std::unique_ptr<Expression>;
using Kind = Expression::Kind;

constexpr int kMaxDepth = 64;      // of nested blocks and expressions; real templates stay below 15
constexpr int kMaxTagSize = 1000;  // bounds the depth of chains such as a + a + a, too

class Parser {
 public:
  Parser(std::vector<TemplateToken> tokens, const std::string& where)
      : tokens_(std::move(tokens)), where_(where) {}

  std::vector<TemplateNode> run() {
    std::vector<TemplateNode> nodes = parse_body({});
    if (current().kind != TemplateTokenKind::kEnd) refuse("a block that was never opened");
    return nodes;
  }

 private:
  const TemplateToken& current() const { return tokens_[position_]; }
  const TemplateToken& following() const {
    return tokens_[std::min(position_ + 1, tokens_.size() - 1)];
  }
  void advance() {
    if (position_ + 1 < tokens_.size()) ++position_;
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw CheckpointError(fmt::format(
        "{}:{}: expected a ChatML template, got {}, which is not supported. HINT: render "
        "the prompt elsewhere and pass it as text",
        where_, current().line, what));
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
    explicit Nesting(Parser& owner) : parser(owner) {
      if (++parser.depth_ > kMaxDepth) parser.refuse("deep nesting");
    }
    ~Nesting() { --parser.depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;
    Parser& parser;
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

  // --- statements

  bool at_block(const std::vector<std::string_view>& names) const {
    if (current().kind != TemplateTokenKind::kBeginBlock) return false;
    for (const std::string_view name : names) {
      if (following().kind == TemplateTokenKind::kName && following().text == name) return true;
    }
    return false;
  }

  /// Nodes up to one of the blocks in `ends`, which stays unread.
  std::vector<TemplateNode> parse_body(const std::vector<std::string_view>& ends) {
    const Nesting nesting(*this);
    std::vector<TemplateNode> nodes;
    while (current().kind != TemplateTokenKind::kEnd && !at_block(ends)) {
      TemplateNode node;
      tag_size_ = 0;
      if (current().kind == TemplateTokenKind::kText) {
        node.text = current().text;
        advance();
      } else if (current().kind == TemplateTokenKind::kBeginOutput) {
        advance();
        node.kind = TemplateNode::Kind::kOutput;
        node.expression = parse_expression();
        expect(TemplateTokenKind::kEndOutput);
      } else {
        expect(TemplateTokenKind::kBeginBlock);
        parse_statement(node);
      }
      nodes.push_back(std::move(node));
    }
    if (!ends.empty() && current().kind == TemplateTokenKind::kEnd) refuse("a block without end");
    return nodes;
  }

  void parse_statement(TemplateNode& node) {
    if (accept_name("if")) {
      parse_if(node);
    } else if (accept_name("for")) {
      parse_for(node);
    } else if (accept_name("set")) {
      node.kind = TemplateNode::Kind::kSet;
      node.text = expect_name();
      if (accept_operator(".")) node.attribute = expect_name();
      expect_operator("=");
      node.expression = parse_expression();
      expect(TemplateTokenKind::kEndBlock);
    } else {
      refuse(fmt::format("the statement \"{}\"", current().text));
    }
  }

  void parse_if(TemplateNode& node) {
    node.kind = TemplateNode::Kind::kIf;
    node.conditions.push_back(parse_expression());
    expect(TemplateTokenKind::kEndBlock);
    node.bodies.push_back(parse_body({"elif", "else", "endif"}));
    while (true) {
      expect(TemplateTokenKind::kBeginBlock);
      const std::string name = expect_name();
      if (name == "endif") break;
      const bool has_else = node.bodies.size() > node.conditions.size();
      if (has_else) refuse("a branch after else");
      if (name == "elif") node.conditions.push_back(parse_expression());
      expect(TemplateTokenKind::kEndBlock);
      node.bodies.push_back(parse_body({"elif", "else", "endif"}));
    }
    expect(TemplateTokenKind::kEndBlock);
  }

  void parse_for(TemplateNode& node) {
    node.kind = TemplateNode::Kind::kFor;
    node.text = expect_name();
    if (!accept_name("in")) refuse("a loop over several names");
    node.expression = parse_expression();
    if (current().kind != TemplateTokenKind::kEndBlock) refuse("a loop with a condition");
    advance();
    node.bodies.push_back(parse_body({"endfor", "else"}));
    advance();
    if (expect_name() == "else") refuse("a loop with else");
    expect(TemplateTokenKind::kEndBlock);
  }

  // --- expressions, loosest binding first

  ExpressionPtr parse_expression() {
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

  ExpressionPtr parse_or() {
    ExpressionPtr left = parse_and();
    while (accept_name("or")) left = make_binary("or", std::move(left), parse_and());
    return left;
  }

  ExpressionPtr parse_and() {
    ExpressionPtr left = parse_not();
    while (accept_name("and")) left = make_binary("and", std::move(left), parse_not());
    return left;
  }

  ExpressionPtr parse_not() {
    if (!at_name("not")) return parse_comparison();
    const Nesting nesting(*this);
    advance();
    ExpressionPtr expression = make(Kind::kNot);
    expression->operands.push_back(parse_not());
    return expression;
  }

  ExpressionPtr parse_comparison() {
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

  ExpressionPtr parse_sum() {
    ExpressionPtr left = parse_concatenation();
    while (at_operator("+") || at_operator("-")) {
      const std::string name = current().text;
      advance();
      left = make_binary(name, std::move(left), parse_concatenation());
    }
    return left;
  }

  ExpressionPtr parse_concatenation() {
    ExpressionPtr left = parse_unary();
    while (accept_operator("~")) left = make_binary("~", std::move(left), parse_unary());
    return left;
  }

  ExpressionPtr parse_unary() {
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

  ExpressionPtr parse_primary() {
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

  ExpressionPtr parse_name() {
    const std::string name = expect_name();
    if (name == "none" || name == "None") return make(Kind::kNone);
    const bool is_true = name == "true" || name == "True";
    if (is_true || name == "false" || name == "False") {
      ExpressionPtr value = make(Kind::kBoolean);
      value->integer = is_true ? 1 : 0;
      return value;
    }
    return make(Kind::kName, name);
  }

  ExpressionPtr parse_postfix(ExpressionPtr value) {
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

  ExpressionPtr parse_subscript(ExpressionPtr value) {
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

  void parse_arguments(Expression& call) {
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

  ExpressionPtr parse_filters(ExpressionPtr value) {
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

  std::vector<TemplateToken> tokens_;
  const std::string& where_;
  std::size_t position_ = 0;
  int depth_ = 0;
  int tag_size_ = 0;
};

}  // namespace

std::vector<TemplateNode> parse_template(std::string_view source, const std::string& where) {
  return Parser(lex_template(source, where), where).run();
}

}  // namespace blockscope
