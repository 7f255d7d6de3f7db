// A CUDA graph: recorded work of a device that one call can queue again. A launch always costs the
// host microseconds, and a denoising step has hundreds of launches on the same memory.
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

  /// Queues all recorded work on the caller's current stream. Another launch of the same graph must
  /// not be running on a different stream, because both use the same memory.
  virtual void launch() = 0;
};

/// Calls `work` on a separate stream and records its work for the current device; nothing runs.
/// Memory that `work` reads but did not allocate must live as long as the graph. Memory that `work`
/// allocated is not reused before the next graph is captured, so tensors that it returns hold the
/// results of the last launch. Throws what `work` throws. Also throws if `work` does something that
/// can't be recorded: wait, or copy from or to the host.
using CaptureGraph = std::unique_ptr<DeviceGraph> (*)(const std::function<void()>& work);

}  // namespace blockscope
