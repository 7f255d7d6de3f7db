// See template_expression_evaluator.h.
#include "probe/text/template_expression_evaluator.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>

#include "decode_record/base/error.h"
#include "probe/text/template_renderer.h"
#include "probe/text/unicode.h"

namespace blockscope {

using nlohmann::json;

namespace {

constexpr std::size_t kMaxSteps = 1'000'000;  // evaluations; a thousand messages take some 10^5
constexpr std::size_t kMaxWorkBytes = std::size_t{1} << 30;  // of text read and made on the way

/// What a copy of `value` takes; a list has no lists in it, and the values of an object are
/// scalars.
std::size_t bytes_of(const json& value) {
  if (value.is_string()) return kElementBytes + value.get_ref<const std::string&>().size();
  std::size_t bytes = kElementBytes;
  if (value.is_object()) {
    for (const json& field : value) {
      bytes += kElementBytes;
      if (field.is_string()) bytes += field.get_ref<const std::string&>().size();
    }
  }
  return bytes;
}

/// What a comparison with `value` reads.
std::size_t bytes_read(const json& value) {
  if (!value.is_array()) return bytes_of(value);
  std::size_t bytes = kElementBytes;
  for (const json& element : value) bytes += bytes_of(element);
  return bytes;
}

}  // namespace

TemplateExpressionEvaluator::TemplateExpressionEvaluator(const json& context,
                                                         const std::string& where)
    : where_(where) {
  for (const auto& [name, value] : context.items()) variables_.emplace(name, Value(value));
}

void TemplateExpressionEvaluator::fail(std::size_t line, const std::string& what) const {
  throw PromptError(fmt::format("{}:{}: this chat template can't render these messages: {}. {}",
                                where_, line, what, kTemplateAdvice));
}

// --- bounds

void TemplateExpressionEvaluator::count_steps(std::size_t line, std::size_t steps) {
  steps_ += steps;
  if (steps_ > kMaxSteps) fail(line, "too many steps");
}

void TemplateExpressionEvaluator::count_bytes(std::size_t line, std::size_t bytes) {
  work_ += bytes;
  if (work_ > kMaxWorkBytes) fail(line, "more than 1 GiB of text on the way");
}

TemplateValue TemplateExpressionEvaluator::made(std::size_t line, std::string text) {
  if (text.size() > kMaxRenderedBytes) fail(line, "more than 64 MiB of text");
  count_bytes(line, text.size());
  return Value(json(std::move(text)));
}

// --- values

void TemplateExpressionEvaluator::refuse_namespace(const Value& value, std::size_t line) const {
  if (value.space() != nullptr) fail(line, "a namespace in a namespace");
}

std::string TemplateExpressionEvaluator::to_text(const Value& value, const Expression& at) {
  if (value.is_undefined()) return {};
  if (value.is_string()) return text_of(value, at);
  if (value.is_integer()) return value.json()->dump();
  if (value.json() != nullptr && value.json()->is_boolean()) {
    return value.json()->get<bool>() ? "True" : "False";
  }
  if (value.json() != nullptr && value.json()->is_null()) return "None";
  fail(at, "output of a list or an object");
}

const std::string& TemplateExpressionEvaluator::text_of(const Value& value, const Expression& at) {
  if (value.is_undefined()) fail(at, "a string operation on an undefined value");
  if (!value.is_string()) fail(at, "a string operation on something that is not a string");
  count_bytes(at, value.string().size());
  return value.string();
}

std::int64_t TemplateExpressionEvaluator::integer_of(const Value& value,
                                                     const Expression& at) const {
  if (!value.is_integer()) fail(at, "arithmetic on something that is not an integer");
  return value.json()->get<std::int64_t>();
}

TemplateValue TemplateExpressionEvaluator::evaluate(const Expression& expression) {
  count_steps(expression.line, 1);
  const auto operand = [&](std::size_t index) { return evaluate(*expression.operands[index]); };
  switch (expression.kind) {
    case Kind::kString:
      return Value(json(expression.text));
    case Kind::kInteger:
      return Value(json(expression.integer));
    case Kind::kBoolean:
      return Value(json(expression.integer != 0));
    case Kind::kNone:
      return Value(json());
    case Kind::kName: {
      const auto found = variables_.find(expression.text);
      if (found != variables_.end()) return found->second;
      if (is_function(expression.text)) fail(expression, "a function as a value");
      return {};
    }
    case Kind::kList:
      return list(expression);
    case Kind::kAttribute: {
      const Value value = operand(0);
      if (value.is_undefined()) {
        fail(expression, fmt::format("attribute \"{}\" of an undefined value", expression.text));
      }
      return value.member(expression.text);
    }
    case Kind::kItem:
      return item(operand(0), operand(1), expression);
    case Kind::kSlice:
      return slice(expression);
    case Kind::kCall:
      return call(expression);
    case Kind::kFilter:
      return filter(expression);
    case Kind::kTest:
      return Value(json(test(expression) != (expression.integer != 0)));
    case Kind::kNot:
      return Value(json(!operand(0).truthy()));
    case Kind::kNegative:
      return difference(Value(json(0)), operand(0), expression);
    case Kind::kBinary:
      return binary(expression);
    case Kind::kConditional:
      if (operand(1).truthy()) return operand(0);
      return expression.operands.size() > 2 ? operand(2) : Value();
  }
  return {};
}

TemplateValue TemplateExpressionEvaluator::list(const Expression& expression) {
  json values = json::array();
  for (const auto& operand : expression.operands) {
    const Value value = evaluate(*operand);
    if (value.json() == nullptr) fail(expression, "an undefined element of a list");
    if (value.json()->is_array()) fail(expression, "a list in a list");
    count_bytes(expression, bytes_of(*value.json()));
    values.push_back(*value.json());
  }
  return Value(std::move(values));
}

TemplateValue TemplateExpressionEvaluator::item(const Value& container, const Value& key,
                                                const Expression& at) const {
  if (container.is_undefined()) fail(at, "an item of an undefined value");
  if (key.is_string()) return container.member(key.string());
  if (container.json() == nullptr || !container.json()->is_array()) return {};
  const auto size = static_cast<std::int64_t>(container.json()->size());
  std::int64_t index = integer_of(key, at);
  if (index < 0) index += size;
  if (index < 0 || index >= size) return {};
  return container.element(static_cast<std::size_t>(index));
}

TemplateValue TemplateExpressionEvaluator::slice(const Expression& expression) {
  const Value whole = evaluate(*expression.operands[0]);
  const bool is_list = whole.json() != nullptr && whole.json()->is_array();
  if (!is_list && !whole.is_string()) {
    fail(expression, "a slice of something that is not a list or a string");
  }
  const std::u32string characters = is_list ? U"" : to_utf32(text_of(whole, expression));
  const auto part = [&](std::size_t index, std::int64_t fallback) {
    const Value value = evaluate(*expression.operands[index]);
    return value.json() != nullptr && value.json()->is_null() ? fallback
                                                              : integer_of(value, expression);
  };
  const auto size = static_cast<std::int64_t>(is_list ? whole.json()->size() : characters.size());
  const std::int64_t step = part(3, 1);
  if (step != 1 && step != -1) fail(expression, "a slice with a step other than 1 and -1");
  const std::int64_t low = step > 0 ? 0 : -1;
  const std::int64_t high = step > 0 ? size : size - 1;
  const auto bound = [&](std::size_t index, std::int64_t fallback) {
    std::int64_t value = part(index, size + 1);  // size + 1: absent
    if (value == size + 1) return fallback;
    if (value < 0) value += size;
    return std::clamp(value, low, high);
  };
  const std::int64_t begin = bound(1, step > 0 ? low : high);
  const std::int64_t end = bound(2, step > 0 ? high : low);
  json list = json::array();
  std::string text;
  for (std::int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
    const auto index = static_cast<std::size_t>(i);
    if (is_list) {
      count_bytes(expression, bytes_of((*whole.json())[index]));
      list.push_back((*whole.json())[index]);
    } else {
      append_utf8(text, characters[index]);
    }
  }
  return is_list ? Value(std::move(list)) : made(expression, std::move(text));
}

TemplateValue TemplateExpressionEvaluator::binary(const Expression& expression) {
  const std::string& name = expression.text;
  Value left = evaluate(*expression.operands[0]);
  if (name == "and") return left.truthy() ? evaluate(*expression.operands[1]) : left;
  if (name == "or") return left.truthy() ? left : evaluate(*expression.operands[1]);
  const Value right = evaluate(*expression.operands[1]);
  if (name == "~") return made(expression, to_text(left, expression) + to_text(right, expression));
  if (name == "+" && (left.is_string() || right.is_string())) {
    return made(expression, text_of(left, expression) + text_of(right, expression));
  }
  if (name == "+") return sum(left, right, expression);
  if (name == "-") return difference(left, right, expression);
  if (name == "%") return remainder(left, right, expression);
  if (name == "==" || name == "!=") {
    if (left.json() != nullptr) count_bytes(expression, bytes_read(*left.json()));
    const bool equal = left.json() != nullptr && right.json() != nullptr
                           ? *left.json() == *right.json()
                           : left.is_undefined() && right.is_undefined();
    return Value(json(equal == (name == "==")));
  }
  if (name == "in" || name == "not in") {
    return Value(json(contains(right, left, expression) == (name == "in")));
  }
  const std::int64_t a = integer_of(left, expression);
  const std::int64_t b = integer_of(right, expression);
  return Value(json(name == "<" ? a < b : name == ">" ? a > b : name == "<=" ? a <= b : a >= b));
}

TemplateValue TemplateExpressionEvaluator::sum(const Value& left, const Value& right,
                                               const Expression& at) const {
  std::int64_t result = 0;
  if (__builtin_add_overflow(integer_of(left, at), integer_of(right, at), &result)) {
    fail(at, "an integer of more than 64 bits");
  }
  return Value(json(result));
}

TemplateValue TemplateExpressionEvaluator::difference(const Value& left, const Value& right,
                                                      const Expression& at) const {
  std::int64_t result = 0;
  if (__builtin_sub_overflow(integer_of(left, at), integer_of(right, at), &result)) {
    fail(at, "an integer of more than 64 bits");
  }
  return Value(json(result));
}

/// Python's: the sign is the divisor's.
TemplateValue TemplateExpressionEvaluator::remainder(const Value& left, const Value& right,
                                                     const Expression& at) const {
  const std::int64_t divisor = integer_of(right, at);
  if (divisor == 0) fail(at, "a division by zero");
  if (divisor == -1) return Value(json(0));  // the least integer has no opposite
  const std::int64_t rest = integer_of(left, at) % divisor;
  return Value(json(rest != 0 && (rest < 0) != (divisor < 0) ? rest + divisor : rest));
}

bool TemplateExpressionEvaluator::contains(const Value& container, const Value& value,
                                           const Expression& at) {
  if (container.is_string()) {
    return text_of(container, at).find(text_of(value, at)) != std::string::npos;
  }
  if (container.json() != nullptr && container.json()->is_array() && value.json() != nullptr) {
    count_bytes(at, bytes_read(*container.json()));
    return std::find(container.json()->begin(), container.json()->end(), *value.json()) !=
           container.json()->end();
  }
  if (container.json() != nullptr && container.json()->is_object() && value.is_string()) {
    return container.json()->contains(value.string());
  }
  fail(at, "\"in\" on something that holds no values");
}

}  // namespace blockscope
