// Work of a device that is kept, to be queued again in one call: a CUDA graph. A launch costs the
// host microseconds whatever it computes, and a denoising step is hundreds of them on the same
// memory.
#pragma once

#include <functional>
#include <memory>

namespace blockscope {

class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  DeviceGraph() = default;
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;

  /// Queues all of it behind what the caller's current stream holds. Not while a launch of it may
  /// still be running on another stream: both use the same memory.
  virtual void launch() = 0;
};

/// Calls `work` on a stream of its own: what it asks of the current device is kept, none of it
/// runs. Whatever memory it reads that it did not take itself must live as long as the graph; what
/// it took is not given to anybody else before the next graph is captured, so that tensors it
/// leaves behind hold the results of the last launch. Throws what `work` throws, and where it did
/// something that can't be kept: waited, or copied from or to the host.
using CaptureGraph = std::unique_ptr<DeviceGraph> (*)(const std::function<void()>& work);

}  // namespace blockscope
