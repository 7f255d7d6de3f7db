// The launches of one backend, and the queue they go to. The operators on devices
// (attention_device.h, small_operators_device.h, row_ops_device.h) are written against this, so
// that the GPU and the emulator run the same checks, workspace and calls.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "kernels/cuda/device_calls.h"
#include "kernels/cuda/device_graph.h"

namespace blockscope {

template <class Call>
using DeviceLaunch = void (*)(const Call& call, void* stream);

struct DeviceKernels {
  DeviceLaunch<SplitCall> split_attention = nullptr;
  DeviceLaunch<MergeCall> merge = nullptr;
  DeviceLaunch<SimilarityCall> similarity = nullptr;
  DeviceLaunch<SelectCall> select = nullptr;
  DeviceLaunch<MeansCall> means = nullptr;
  DeviceLaunch<TopKCall> top_k = nullptr;
  DeviceLaunch<UnionCall> count_union = nullptr;
  DeviceLaunch<BoundsCall> bounds = nullptr;
  DeviceLaunch<PageScoresCall> page_scores = nullptr;
  DeviceLaunch<PrefillCall> prefill = nullptr;
  DeviceLaunch<NormCall> norm = nullptr;
  DeviceLaunch<RotateCall> rotate = nullptr;
  DeviceLaunch<GateCall> gate = nullptr;
};

// `enqueue` calls its argument with the stream on which the caller's work is queued, then or later:
// it holds copies of everything but device memory.
struct DeviceQueue {
  DeviceKernels kernels;
  std::function<void(std::function<void(void* stream)>)> enqueue;
  std::string (*missing_code)() = nullptr;  // why the current device can't run them; empty: it can
  CaptureGraph capture = nullptr;           // null: the device has no graphs

  template <class Call>
  void launch(DeviceLaunch<Call> kernel, const Call& call) const {
    enqueue([kernel, call](void* stream) { kernel(call, stream); });
  }
};

}  // namespace blockscope
