// The StepView of one task. Internal to analysis.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>

#include "analysis/pass/step_pass.h"
#include "analysis/pass/step_values.h"

namespace blockscope {

/// Refers to the task, which must outlive it. Throws std::logic_error for values that no metric
/// listed in its Needs.
class TaskView final : public StepView {
 public:
  explicit TaskView(const StepTask& task) : task_(task), context_(*task.context) {}

  const StepRef& now() const override { return *context_.now; }
  const StepRef* previous() const override { return context_.previous; }
  const StepRef* first() const override { return context_.first; }
  std::size_t layer() const override { return task_.layer; }
  std::span<const std::uint8_t> valid() const override { return *task_.valid; }
  std::int64_t num_valid() const override {
    return std::ranges::count_if(*task_.valid, [](auto v) { return v != 0; });
  }
  std::span<const std::uint8_t> previous_valid() const override {
    return span_of(task_.previous_valid);
  }
  std::span<const std::uint8_t> first_valid() const override { return span_of(task_.first_valid); }

  ArrayView now(Field field) const override { return at(task_.now, field); }
  ArrayView previous(Field field) const override { return at(task_.previous, field); }
  ArrayView first(Field field) const override { return at(task_.first, field); }
  bool reuses(const ReuseRule& rule) const override { return context_.reuses.at(rule_index(rule)); }
  ArrayView source(Field field, const ReuseRule& rule) const override {
    return at(task_.sources.at(rule_index(rule)), field);
  }
  const StepRef* source(const ReuseRule& rule) const override { return context_.sources.at(rule_index(rule)); }
  std::span<const std::uint8_t> source_valid(const ReuseRule& rule) const override {
    return span_of(task_.source_valid.at(rule_index(rule)));
  }

 private:
  static std::span<const std::uint8_t> span_of(const ValidPositions& positions) {
    return positions ? std::span<const std::uint8_t>(*positions) : std::span<const std::uint8_t>();
  }
  ArrayView at(const LayerValues& values, Field field) const {
    const std::int8_t slot = context_.plan->slot_of.at(static_cast<std::size_t>(field));
    if (slot < 0) throw std::logic_error("StepView: a field that no metric asked for");
    return values ? (*values)[static_cast<std::size_t>(slot)].get() : ArrayView{};
  }
  std::size_t rule_index(const ReuseRule& rule) const {
    const auto& rules = context_.plan->rules;
    const auto found = std::ranges::find(rules, rule);
    if (found == rules.end()) throw std::logic_error("StepView: a rule that no metric asked for");
    return static_cast<std::size_t>(found - rules.begin());
  }

  const StepTask& task_;
  const StepContext& context_;
};

}  // namespace blockscope
