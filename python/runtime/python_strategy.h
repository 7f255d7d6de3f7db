// Strategies that are written in Python (docs/python.md, "Your own strategy and cache").
#pragma once

#include <nanobind/nanobind.h>

namespace blockscope::python {

/// Adds a strategy to the table (probe/strategies/strategy_table.h). `facts`: as for
/// add_python_policy(). `choose(scores, state, **options)` returns positions of the block. Throws
/// UsageError.
void add_python_strategy(const nanobind::dict& facts, nanobind::object choose);

void bind_python_strategy(nanobind::module_& module);

}  // namespace blockscope::python
