// CaptureGraph of a GPU (device_graph.h). Throws c10::Error for an error of CUDA.
#pragma once

#include "kernels/cuda/device_graph.h"

namespace blockscope::cuda {

std::unique_ptr<DeviceGraph> capture_graph(const std::function<void()>& work);

}  // namespace blockscope::cuda
