// The expressions of the chat-template renderer: their values, with Python's and Jinja's meaning of
// truth, slices, string methods and undefined values, and the bounds of a rendering.
// template_calls.cpp has functions, filters and tests, template_renderer.cpp adds the statements.
// Internal to text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "probe/text/template_parser.h"
#include "probe/text/template_value.h"

namespace blockscope {

/// What an element of a list takes next to its text.
inline constexpr std::size_t kElementBytes = 64;

class TemplateExpressionEvaluator {
 protected:
  using Expression = TemplateExpression;
  using Value = TemplateValue;

  TemplateExpressionEvaluator(const nlohmann::json& context, const std::string& where);
  virtual ~TemplateExpressionEvaluator() = default;

  /// A macro of the template, nullptr if it has none of this name.
  virtual const TemplateNode* macro_named(const std::string& name) const = 0;
  /// The text that it makes; `values` are the arguments, the last ones by their names in `at`.
  virtual std::string call_macro(const TemplateNode& macro, const std::vector<Value>& values,
                                 const Expression& at) = 0;

  Value evaluate(const Expression& expression);
  /// What a template prints for a value.
  std::string to_text(const Value& value, const Expression& at);

  [[noreturn]] void fail(std::size_t line, const std::string& what) const;
  [[noreturn]] void fail(const Expression& at, const std::string& what) const {
    fail(at.line, what);
  }
  /// Counts evaluations; a rendering may take a bounded number of them.
  void count_steps(std::size_t line, std::size_t steps);
  /// A namespace in a namespace could hold itself, or be nested without end.
  void refuse_namespace(const Value& value, std::size_t line) const;

  /// A text that was rendered; its bytes are counted.
  Value made(std::size_t line, std::string text);

  std::map<std::string, Value> variables_;

 private:
  using Kind = Expression::Kind;

  /// Whether a name that is no variable is a function or a macro.
  bool is_function(const std::string& name) const;
  void count_bytes(std::size_t line, std::size_t bytes);
  void count_bytes(const Expression& at, std::size_t bytes) { count_bytes(at.line, bytes); }
  Value made(const Expression& at, std::string text) { return made(at.line, std::move(text)); }
  const std::string& text_of(const Value& value, const Expression& at);
  std::int64_t integer_of(const Value& value, const Expression& at) const;
  Value list(const Expression& expression);
  Value item(const Value& container, const Value& key, const Expression& at) const;
  Value slice(const Expression& expression);
  Value binary(const Expression& expression);
  Value sum(const Value& left, const Value& right, const Expression& at) const;
  Value difference(const Value& left, const Value& right, const Expression& at) const;
  Value remainder(const Value& left, const Value& right, const Expression& at) const;
  bool contains(const Value& container, const Value& value, const Expression& at);
  std::vector<Value> arguments(const Expression& call);
  Value call(const Expression& expression);
  Value range(const std::vector<Value>& values, const Expression& at);
  Value call_method(const Expression& expression, const Expression& callee);
  Value filter(const Expression& expression);
  bool test(const Expression& expression);

  const std::string& where_;
  std::size_t steps_ = 0;
  std::size_t work_ = 0;  // bytes
};

}  // namespace blockscope
