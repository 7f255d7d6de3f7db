// The launches of one world, and the queue they go to. The operators on devices
// (attention_device.h, ...) are written against this, so that the GPU and the emulator run the same
// checks, workspace and calls.
#pragma once

#include <functional>
#include <utility>

#include "kernels/split_attention_launch.h"

namespace blockscope {

struct DeviceKernels {
  void (*split_attention)(const SplitCall& call, void* stream) = nullptr;
};

// `enqueue` calls its argument with the stream on which the caller's work is queued, then or later:
// it holds copies of everything but device memory.
struct DeviceQueue {
  DeviceKernels kernels;
  std::function<void(std::function<void(void* stream)>)> enqueue;

  template <class Call>
  void launch(void (*kernel)(const Call&, void*), const Call& call) const {
    enqueue([kernel, call](void* stream) { kernel(call, stream); });
  }
};

}  // namespace blockscope
