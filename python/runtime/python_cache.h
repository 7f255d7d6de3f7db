// Caches that are written in Python (docs/python.md, "Your own strategy and cache").
#pragma once

#include <nanobind/nanobind.h>

namespace blockscope::python {

/// Adds a cache for bidirectional models to the table (probe/caches/cache_table.h). `facts`: as for
/// add_python_policy(). `make(**options)` returns an object with rows(state), and perhaps
/// end_step(state, selected, confidence). Throws UsageError.
void add_python_cache(const nanobind::dict& facts, nanobind::object make);

void bind_python_cache(nanobind::module_& module);

}  // namespace blockscope::python
