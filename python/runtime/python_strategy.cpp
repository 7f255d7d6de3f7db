#include "python/runtime/python_strategy.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "decode_record/base/error.h"
#include "probe/strategies/strategy_table.h"
#include "python/runtime/own_choice.h"
#include "python/runtime/plugin_error.h"

namespace nb = nanobind;

namespace blockscope::python {
namespace {

/// `state` in a strategy's call.
struct StrategyState {
  int64_t step = 0;  // from 1
  int64_t quota = 0;
  int64_t denoising_steps = 0;
  std::vector<int64_t> masked;
  nb::object token, confidence;  // NumPy [B]
};

template <typename Value>
nb::object numpy_of(const std::vector<Value>& values, const char* type) {
  static const auto* const array = new nb::object(nb::module_::import_("numpy").attr("array"));
  return (*array)(nb::cast(values), type);
}

std::vector<int64_t> checked_choice(const std::vector<int64_t>& positions,
                                    const StrategyStep& step) {
  std::vector<bool> seen(step.masked.size(), false);
  for (const int64_t position : positions) {
    const bool inside = position >= 0 && position < std::ssize(step.masked);
    if (!inside || !step.masked[static_cast<size_t>(position)]) {
      throw Error(fmt::format("expected positions of the block that are masked, got {}", position));
    }
    if (seen[static_cast<size_t>(position)]) {
      throw Error(fmt::format("expected every position once, got {} twice", position));
    }
    seen[static_cast<size_t>(position)] = true;
  }
  if (positions.empty() && step.quota > 0) {
    throw Error("expected at least one position, got none: the block would never end");
  }
  return positions;
}

}  // namespace

void add_python_strategy(const nb::dict& facts, nb::object choose) {
  StrategyEntry entry;
  static_cast<ChoiceFacts&>(entry) = choice_facts("strategy", facts);
  const std::vector<OwnOption> options = own_options(facts);
  for (const OwnOption& own : options) {
    entry.options.push_back(own_option(own, &UnmaskingOptions::own, entry.name));
  }
  entry.check = [options](const UnmaskingOptions& given) { check_given(options, given.own); };
  const auto file = nb::cast<std::string>(facts["file"]);
  entry.select = [choose = KeptObject(std::move(choose)), name = entry.name,
                  file](StrategyStep& step) {
    const auto where = [&] {
      return fmt::format("strategy {} ({}): step {}", name, file, step.step + 1);
    };
    const nb::gil_scoped_acquire gil;
    return call_plugin(where, [&] {
      StrategyState state;
      state.step = step.step + 1;
      state.quota = step.quota;
      state.denoising_steps = step.options.denoising_steps;
      state.masked = step.order;
      state.token = numpy_of(step.prediction.token, "int64");
      state.confidence = numpy_of(step.prediction.confidence, "float32");
      const nb::object chosen =
          choose.get()(numpy_of(step.score, "float64"), nb::cast(std::move(state)),
                       **own_keywords(step.options.own));
      return checked_choice(whole_numbers_of(chosen), step);
    });
  };
  add_strategy(std::move(entry));
}

void bind_python_strategy(nb::module_& module) {
  nb::class_<StrategyState>(module, "StrategyState")
      .def_ro("step", &StrategyState::step)
      .def_ro("quota", &StrategyState::quota)
      .def_ro("denoising_steps", &StrategyState::denoising_steps)
      .def_ro("masked", &StrategyState::masked)
      .def_ro("token", &StrategyState::token)
      .def_ro("confidence", &StrategyState::confidence);
}

}  // namespace blockscope::python
