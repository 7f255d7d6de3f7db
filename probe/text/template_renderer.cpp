// See template_renderer.h.
#include "probe/text/template_renderer.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "probe/text/template_expression_evaluator.h"

namespace blockscope {

using nlohmann::json;

namespace {

constexpr std::size_t kStepsPerRound = 10;  // of a loop, and one for each variable that it copies

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
    variables_ = outer;
  }

  void run_set(const TemplateNode& node) {
    Value value = evaluate(*node.expression);
    if (node.attribute.empty()) {
      variables_[node.text] = std::move(value);
      return;
    }
    const auto found = variables_.find(node.text);
    if (found == variables_.end() || found->second.space() == nullptr) {
      fail(*node.expression, fmt::format("\"{}\" is not a namespace", node.text));
    }
    refuse_namespace(value, *node.expression);
    (*found->second.space())[node.attribute] = std::move(value);
  }

  std::string output_;
};

}  // namespace

std::string render_template(const std::vector<TemplateNode>& nodes, const json& context,
                            const std::string& where) {
  return Renderer(context, where).run(nodes);
}

}  // namespace blockscope
