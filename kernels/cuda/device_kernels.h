// The launches of one backend, and their queue. The operators on devices (device_operators.h) use
// this interface, so the GPU and the emulator run the same checks, workspaces and calls.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "kernels/cuda/device_calls.h"
#include "kernels/cuda/device_graph.h"
#include "kernels/cuda/library_attention.h"
#include "kernels/cuda/library_products.h"

namespace blockscope {

template <class Call>
using DeviceLaunch = void (*)(const Call& call, void* stream);

struct DeviceKernels {
#define BLOCKSCOPE_KERNEL(name, Call) DeviceLaunch<Call> name = nullptr;
  BLOCKSCOPE_LAUNCHES(BLOCKSCOPE_KERNEL)
#undef BLOCKSCOPE_KERNEL
};

// `enqueue` calls its argument, at once or later, with the stream of the caller's queued work. The
// argument holds copies of everything except device memory.
struct DeviceQueue {
  DeviceKernels kernels;
  std::function<void(std::function<void(void* stream)>)> enqueue;
  std::string (*missing_code)() = nullptr;  // why this device can't run them; empty if it can
  CaptureGraph capture = nullptr;           // null: the device has no graphs
  PrefixAttention prefix = nullptr;         // null: split_attention uses our kernels alone
  GroupedProduct grouped = nullptr;         // null: the device has none
  // Whether `grouped` runs on the current device for this type without waiting; null: it does.
  bool (*groups)(at::ScalarType) = nullptr;

  template <class Call>
  void launch(DeviceLaunch<Call> kernel, const Call& call) const {
    enqueue([kernel, call](void* stream) { kernel(call, stream); });
  }
};

}  // namespace blockscope
