// See template_parser.h. Statements; the expressions in them are template_expression_parser.h's.
#include "probe/text/template_parser.h"

#include <fmt/format.h>

#include <utility>

#include "probe/text/template_expression_parser.h"

namespace blockscope {

namespace {

class Parser : TemplateExpressionParser {
 public:
  Parser(std::vector<TemplateToken> tokens, const std::string& where)
      : TemplateExpressionParser(std::move(tokens), where) {}

  std::vector<TemplateNode> run() {
    std::vector<TemplateNode> nodes = parse_body({});
    if (current().kind != TemplateTokenKind::kEnd) refuse("a block that was never opened");
    return nodes;
  }

 private:
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
    ++bodies_;
    std::vector<TemplateNode> nodes;
    while (current().kind != TemplateTokenKind::kEnd && !at_block(ends)) {
      TemplateNode node;
      begin_tag();
      node.line = current().line;
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
    --bodies_;
    return nodes;
  }

  void parse_statement(TemplateNode& node) {
    if (accept_name("if")) {
      parse_if(node);
    } else if (accept_name("for")) {
      parse_for(node);
    } else if (accept_name("set")) {
      parse_set(node);
    } else if (accept_name("macro")) {
      parse_macro(node);
    } else {
      refuse(fmt::format("the statement \"{}\"", current().text));
    }
  }

  void parse_set(TemplateNode& node) {
    node.kind = TemplateNode::Kind::kSet;
    node.text = expect_name();
    if (accept_operator(".")) node.attribute = expect_name();
    if (current().kind == TemplateTokenKind::kEndBlock) {
      advance();
      node.bodies.push_back(parse_body({"endset"}));
      advance();
      expect_name();
    } else {
      expect_operator("=");
      node.expression = parse_expression();
    }
    expect(TemplateTokenKind::kEndBlock);
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

  void parse_macro(TemplateNode& node) {
    if (bodies_ > 1) refuse("a macro inside another block");
    node.kind = TemplateNode::Kind::kMacro;
    node.text = expect_name();
    expect_operator("(");
    while (!accept_operator(")")) {
      node.parameters.push_back(expect_name());
      if (accept_operator("=")) {
        node.conditions.push_back(parse_expression());
      } else if (!node.conditions.empty()) {
        refuse("a parameter without a default after one with a default");
      }
      if (!at_operator(")")) expect_operator(",");
    }
    expect(TemplateTokenKind::kEndBlock);
    in_macro_ = true;
    node.bodies.push_back(parse_body({"endmacro"}));
    in_macro_ = false;
    advance();
    expect_name();
    expect(TemplateTokenKind::kEndBlock);
  }

  void parse_for(TemplateNode& node) {
    node.kind = TemplateNode::Kind::kFor;
    node.text = expect_name();
    // Branches for tools have such loops. They are read here, and refused only when they run.
    while (accept_operator(",")) {
      node.attribute += (node.attribute.empty() ? "" : ", ") + expect_name();
    }
    if (!accept_name("in")) refuse(fmt::format("\"{}\" instead of \"in\"", current().text));
    node.expression = parse_expression();
    if (current().kind != TemplateTokenKind::kEndBlock) refuse("a loop with a condition");
    advance();
    node.bodies.push_back(parse_body({"endfor", "else"}));
    advance();
    if (expect_name() == "else") refuse("a loop with else");
    expect(TemplateTokenKind::kEndBlock);
  }

  int bodies_ = 0;  // that are open; 1: the template's own
};

}  // namespace

std::vector<TemplateNode> parse_template(std::string_view source, const std::string& where) {
  return Parser(lex_template(source, where), where).run();
}

}  // namespace blockscope
