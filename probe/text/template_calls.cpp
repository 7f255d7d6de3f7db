// Functions, macros, methods, filters and tests of the chat-template renderer
// (template_expression_evaluator.h).
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>

#include "probe/text/template_expression_evaluator.h"

namespace blockscope {

using nlohmann::json;

namespace {

constexpr std::size_t kMaxParts = 100'000;  // of a split text, and of range(): jinja2's limit

}  // namespace

bool TemplateExpressionEvaluator::is_function(const std::string& name) const {
  // jinja2's, as transformers configures it
  constexpr std::string_view kNames[] = {"cycler", "dict",        "joiner",
                                         "lipsum", "namespace",   "raise_exception",
                                         "range",  "strftime_now"};
  return macro_named(name) != nullptr || std::ranges::find(kNames, name) != std::end(kNames);
}

std::vector<TemplateValue> TemplateExpressionEvaluator::arguments(const Expression& call) {
  std::vector<Value> values;
  for (std::size_t i = 1; i < call.operands.size(); ++i) {
    values.push_back(evaluate(*call.operands[i]));
  }
  return values;
}

TemplateValue TemplateExpressionEvaluator::call(const Expression& expression) {
  const Expression& callee = *expression.operands[0];
  if (callee.kind == Kind::kAttribute) return call_method(expression, callee);
  if (callee.kind != Kind::kName) fail(expression, "a call of something without a name");
  const std::vector<Value> values = arguments(expression);
  if (const TemplateNode* macro = macro_named(callee.text)) {
    if (!variables_.contains(callee.text)) {
      return made(expression, call_macro(*macro, values, expression));
    }
  }
  if (callee.text == "namespace" && values.size() == expression.names.size()) {
    auto space = std::make_shared<Value::Namespace>();
    for (std::size_t i = 0; i < values.size(); ++i) {
      refuse_namespace(values[i], expression.line);
      (*space)[expression.names[i]] = values[i];
    }
    return Value(std::move(space));
  }
  if (callee.text == "strftime_now" && values.size() == 1) {
    const std::string& format = text_of(values[0], expression);
    const auto text = format_local_time(format);
    if (!text) fail(expression, fmt::format("strftime_now of the format \"{}\"", format));
    return made(expression, *text);
  }
  if (callee.text == "raise_exception" && values.size() == 1) {
    fail(expression, fmt::format("it says \"{}\"", to_text(values[0], expression)));
  }
  if (callee.text == "range" && expression.names.empty()) return range(values, expression);
  fail(expression, fmt::format("the function \"{}\" is not supported", callee.text));
}

TemplateValue TemplateExpressionEvaluator::range(const std::vector<Value>& values,
                                                 const Expression& at) {
  if (values.empty() || values.size() > 3) fail(at, "range() without one to three numbers");
  const std::int64_t begin = values.size() > 1 ? integer_of(values[0], at) : 0;
  const std::int64_t end = integer_of(values[values.size() > 1 ? 1 : 0], at);
  const std::int64_t step = values.size() > 2 ? integer_of(values[2], at) : 1;
  constexpr std::int64_t kLargest = std::int64_t{1} << 40;  // keeps the differences within 64 bits
  for (const std::int64_t value : {begin, end, step}) {
    if (value > kLargest || value < -kLargest) fail(at, "range() of numbers beyond 2^40");
  }
  if (step == 0) fail(at, "range() with a step of 0");
  json numbers = json::array();
  for (std::int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
    if (numbers.size() == kMaxParts) fail(at, "range() of more than 100,000 numbers");
    numbers.push_back(i);
  }
  count_bytes(at, numbers.size() * kElementBytes);
  return Value(std::move(numbers));
}

TemplateValue TemplateExpressionEvaluator::call_method(const Expression& expression,
                                                       const Expression& callee) {
  const Value object = evaluate(*callee.operands[0]);
  const std::vector<Value> values = arguments(expression);
  const std::string& name = callee.text;
  if (!expression.names.empty()) fail(expression, "a method call with named arguments");
  if (name == "get" && object.json() != nullptr && object.json()->is_object() &&
      (values.size() == 1 || values.size() == 2)) {
    const Value found = object.member(text_of(values[0], expression));
    if (!found.is_undefined()) return found;
    return values.size() == 2 ? values[1] : Value(json());
  }
  const std::string& text = text_of(object, expression);
  std::optional<std::string> argument;
  if (values.size() == 1) argument = text_of(values[0], expression);
  if (values.size() <= 1) {
    if (name == "strip") return made(expression, strip_text(text, argument, true, true));
    if (name == "lstrip") return made(expression, strip_text(text, argument, true, false));
    if (name == "rstrip") return made(expression, strip_text(text, argument, false, true));
    if (name == "split" && (!argument || !argument->empty())) {
      const std::vector<std::string> parts = split_text(text, argument, kMaxParts);
      if (parts.size() > kMaxParts) fail(expression, "a split into more than 100,000 parts");
      count_bytes(expression, text.size() + parts.size() * kElementBytes);
      return Value(json(parts));
    }
    if (name == "startswith" && argument) return Value(json(text.starts_with(*argument)));
    if (name == "endswith" && argument) return Value(json(text.ends_with(*argument)));
  }
  fail(expression, fmt::format("the method \"{}\" is not supported", name));
}

TemplateValue TemplateExpressionEvaluator::filter(const Expression& expression) {
  const Value value = evaluate(*expression.operands[0]);
  const std::vector<Value> values = arguments(expression);
  const std::string& name = expression.text;
  if ((name == "length" || name == "count") && values.empty() && !value.is_undefined()) {
    if (value.is_string()) {
      const std::string& text = text_of(value, expression);
      return Value(json(std::count_if(text.begin(), text.end(), [](char c) {
        return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
      })));
    }
    if (value.json() != nullptr && value.json()->is_structured()) {
      return Value(json(value.json()->size()));
    }
  }
  if ((name == "first" || name == "last") && values.empty() && value.json() != nullptr &&
      value.json()->is_array()) {
    if (value.json()->empty()) return {};
    return value.element(name == "first" ? 0 : value.json()->size() - 1);
  }
  if (name == "trim" && values.empty()) {
    return made(expression, strip_text(to_text(value, expression), std::nullopt, true, true));
  }
  if (name == "string" && values.empty()) return made(expression, to_text(value, expression));
  if ((name == "lower" || name == "upper") && values.empty()) {
    const auto text = change_case(to_text(value, expression), name == "upper");
    if (!text) fail(expression, fmt::format("the filter \"{}\" of text beyond ASCII", name));
    return made(expression, *text);
  }
  if (name == "default" && values.size() == 1 && expression.names.empty()) {
    return value.is_undefined() ? values[0] : value;
  }
  fail(expression, fmt::format("the filter \"{}\" is not supported", name));
}

bool TemplateExpressionEvaluator::test(const Expression& expression) {
  const Expression& operand = *expression.operands[0];
  if (operand.kind == Kind::kName && is_function(operand.text) &&
      !variables_.contains(operand.text)) {
    if (expression.text == "defined") return true;
    if (expression.text == "undefined") return false;
  }
  const Value value = evaluate(*expression.operands[0]);
  const json* data = value.json();
  const std::string& name = expression.text;
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  if (name == "none") return data != nullptr && data->is_null();
  if (name == "string") return value.is_string();
  if (name == "boolean") return data != nullptr && data->is_boolean();
  if (name == "mapping") return data != nullptr && data->is_object();
  if (name == "true") return data != nullptr && data->is_boolean() && data->get<bool>();
  if (name == "false") return data != nullptr && data->is_boolean() && !data->get<bool>();
  if (name == "sequence" || name == "iterable") {
    return value.is_undefined() ||
           (data != nullptr && (data->is_structured() || data->is_string()));
  }
  fail(expression, fmt::format("the test \"{}\" is not supported", name));
}

}  // namespace blockscope
