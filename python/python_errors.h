// Exceptions of C++ become those of blockscope/errors.py, in both extension modules.
#pragma once

namespace blockscope::python {

/// Call it once, when a module is imported.
void register_errors();

}  // namespace blockscope::python
