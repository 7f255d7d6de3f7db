// What LibTorch's exceptions mean to somebody who runs a model: what happened, and what to do next.
#pragma once

#include <c10/util/Exception.h>

#include <string>

namespace blockscope {

struct RunFailure {
  std::string what;
  std::string hint;  // empty: nothing but the words themselves
  std::string message() const;
};

/// Memory that a device lacks, a device that was lost or has no code for its kind; else its words.
RunFailure failure_of(const c10::Error& error);
/// Of std::bad_alloc: memory that the host lacks.
RunFailure host_memory_failure();

}  // namespace blockscope
