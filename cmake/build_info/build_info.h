// What this build is: constants fixed when CMake configured it, for `--version`, `doctor` and the
// attributes of a trace. Generated from build_info.cpp.in, so a new commit recompiles one file.
#pragma once

#include <string_view>

namespace blockscope {

struct BuildInfo {
  std::string_view version;        // "0.1.0"
  std::string_view git_describe;   // "v0.1.0-3-gabc1234", or "unknown" outside a git checkout
  std::string_view compiler;       // "GNU 12.2.0"
  std::string_view build_type;     // "Release"
  std::string_view sanitizers;     // "address;undefined", or empty
  std::string_view hdf5_version;   // of the headers it was compiled against
  std::string_view torch_version;  // of the LibTorch it was built with; empty without one
  std::string_view torch_pin;      // the LibTorch version scripts/setup.sh fetches
};

/// The facts of the running binary.
const BuildInfo& build_info();

}  // namespace blockscope
