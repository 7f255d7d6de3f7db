// See template_renderer.h.
#include "probe/text/template_renderer.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "probe/text/template_expression_evaluator.h"

namespace blockscope {

using nlohmann::json;

namespace {

// Of a loop's round or a macro's call, and one for each variable that it copies.
constexpr std::size_t kStepsPerRound = 10;
constexpr int kMaxCalls = 20;  // of macros in macros

class Renderer : TemplateExpressionEvaluator {
 public:
  Renderer(const json& context, const std::string& where)
      : TemplateExpressionEvaluator(context, where) {}

  std::string run(const std::vector<TemplateNode>& nodes) {
    run_body(nodes);
    return std::move(output_);
  }

 private:
  void output(std::size_t line, std::string_view text) {
    output_ += text;
    if (output_.size() > kMaxRenderedBytes) fail(line, "more than 64 MiB of text");
  }

  void run_body(const std::vector<TemplateNode>& nodes) {
    for (const TemplateNode& node : nodes) {
      count_steps(node.line, 1);
      switch (node.kind) {
        case TemplateNode::Kind::kText:
          output(node.line, node.text);
          break;
        case TemplateNode::Kind::kOutput:
          output(node.line, to_text(evaluate(*node.expression), *node.expression));
          break;
        case TemplateNode::Kind::kIf:
          run_if(node);
          break;
        case TemplateNode::Kind::kFor:
          run_for(node);
          break;
        case TemplateNode::Kind::kSet:
          run_set(node);
          break;
        case TemplateNode::Kind::kMacro:
          macros_[node.text] = &node;
          break;
      }
    }
  }

  void run_if(const TemplateNode& node) {
    for (std::size_t i = 0; i < node.conditions.size(); ++i) {
      if (evaluate(*node.conditions[i]).truthy()) return run_body(node.bodies[i]);
    }
    if (node.bodies.size() > node.conditions.size()) run_body(node.bodies.back());
  }

  void run_for(const TemplateNode& node) {
    const Value list = evaluate(*node.expression);
    if (!node.attribute.empty()) {
      fail(node.line,
           fmt::format("a loop over several names (\"{}, {}\")", node.text, node.attribute));
    }
    if (list.is_undefined()) return;
    if (list.json() == nullptr || !list.json()->is_array()) {
      fail(*node.expression, "a loop over something that is not a list");
    }
    // Jinja scopes a loop: what its body sets (other than in a namespace) is gone afterwards, and
    // each round starts from the outer values.
    const std::map<std::string, Value> outer = variables_;
    const auto* const root = std::exchange(root_, root_ == nullptr ? &outer : root_);
    const std::size_t count = list.json()->size();
    for (std::size_t i = 0; i < count; ++i) {
      count_steps(node.line, kStepsPerRound + outer.size());
      variables_ = outer;
      variables_[node.text] = list.element(i);
      variables_["loop"] = Value(json{{"index", i + 1},
                                      {"index0", i},
                                      {"revindex", count - i},
                                      {"revindex0", count - i - 1},
                                      {"first", i == 0},
                                      {"last", i + 1 == count},
                                      {"length", count}});
      run_body(node.bodies[0]);
    }
    root_ = root;
    variables_ = outer;
  }

  const TemplateNode* macro_named(const std::string& name) const override {
    const auto found = macros_.find(name);
    return found == macros_.end() ? nullptr : found->second;
  }

  /// A macro sees the variables outside of all loops, and its arguments.
  std::string call_macro(const TemplateNode& macro, const std::vector<Value>& values,
                         const Expression& at) override {
    if (++calls_ > kMaxCalls) fail(at, "macros that call each other without end");
    std::map<std::string, Value> caller = std::move(variables_);
    variables_ = root_ == nullptr ? caller : *root_;
    count_steps(at.line, kStepsPerRound + variables_.size());
    const auto* const root = std::exchange(root_, root_ == nullptr ? &caller : root_);
    std::string before = std::exchange(output_, {});
    bind(macro, values, at);
    run_body(macro.bodies[0]);
    std::string text = std::exchange(output_, std::move(before));
    root_ = root;
    variables_ = std::move(caller);
    --calls_;
    return text;
  }

  void bind(const TemplateNode& macro, const std::vector<Value>& values, const Expression& at) {
    const auto& parameters = macro.parameters;
    const std::size_t positional = values.size() - at.names.size();
    if (positional > parameters.size()) fail(at, "too many arguments of a macro");
    std::map<std::string, Value> given;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::string& name = i < positional ? parameters[i] : at.names[i - positional];
      const bool known = std::ranges::find(parameters, name) != parameters.end();
      if (!known || !given.emplace(name, values[i]).second) {
        fail(at, fmt::format("the argument \"{}\" of a macro, twice or without a parameter", name));
      }
    }
    const std::size_t first_default = parameters.size() - macro.conditions.size();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto found = given.find(parameters[i]);
      variables_[parameters[i]] = found != given.end() ? found->second
                                  : i < first_default
                                      ? Value()
                                      : evaluate(*macro.conditions[i - first_default]);
    }
  }

  /// The text between set and endset, whose own variables are gone afterwards.
  Value captured(const TemplateNode& node) {
    count_steps(node.line, kStepsPerRound + variables_.size());
    const std::map<std::string, Value> outer = variables_;
    std::string before = std::exchange(output_, {});
    run_body(node.bodies[0]);
    variables_ = outer;
    return made(node.line, std::exchange(output_, std::move(before)));
  }

  void run_set(const TemplateNode& node) {
    Value value = node.bodies.empty() ? evaluate(*node.expression) : captured(node);
    if (node.attribute.empty()) {
      variables_[node.text] = std::move(value);
      return;
    }
    const auto found = variables_.find(node.text);
    if (found == variables_.end() || found->second.space() == nullptr) {
      fail(node.line, fmt::format("\"{}\" is not a namespace", node.text));
    }
    refuse_namespace(value, node.line);
    (*found->second.space())[node.attribute] = std::move(value);
  }

  std::string output_;
  std::map<std::string, const TemplateNode*> macros_;
  // The variables outside of all loops and macros, while one runs; null: variables_ are these.
  const std::map<std::string, Value>* root_ = nullptr;
  int calls_ = 0;
};

}  // namespace

std::string render_template(const std::vector<TemplateNode>& nodes, const json& context,
                            const std::string& where) {
  return Renderer(context, where).run(nodes);
}

}  // namespace blockscope
