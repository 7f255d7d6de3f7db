// Turns LibTorch's exceptions into messages for users: what happened, and what to do next.
#pragma once

#include <c10/util/Exception.h>

#include <string>

namespace blockscope {

struct RunFailure {
  std::string what;
  std::string hint;  // empty: no advice
  std::string message() const;
};

/// The two parts of a message "what. HINT: hint".
RunFailure split_failure(const std::string& message);

/// Knows a device without enough memory, a lost device, and a device without code for its kind. For
/// all others it returns LibTorch's message.
RunFailure failure_of(const c10::Error& error);
/// For std::bad_alloc: the host has not enough memory.
RunFailure host_memory_failure();

}  // namespace blockscope
