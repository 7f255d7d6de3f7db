// Attention policies that are written in Python (docs/python.md, "Your own policy").
#pragma once

#include <nanobind/nanobind.h>

#include <string>

namespace blockscope::python {

/// Adds a policy to the table (probe/policies/policy_table.h). `facts`: a dict with name, meaning,
/// source, file, sha256, example and options (dicts: name, meaning, kind, initial). `make` is
/// called with the options as keywords and returns the policy. Throws UsageError.
void add_python_policy(const nanobind::dict& facts, nanobind::object make);

}  // namespace blockscope::python
