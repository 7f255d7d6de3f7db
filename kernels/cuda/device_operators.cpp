#include "kernels/cuda/device_operators.h"

#include <c10/util/Exception.h>

namespace blockscope {
namespace {

// Filled while a library is loaded, before any call on its device.
DeviceQueue& cuda_queue() {
  static DeviceQueue queue;
  return queue;
}

thread_local bool captures = false;

class Capturing {
 public:
  Capturing() { captures = true; }
  ~Capturing() { captures = false; }
  Capturing(const Capturing&) = delete;
  Capturing& operator=(const Capturing&) = delete;
};

}  // namespace

void set_cuda_queue(const DeviceQueue& queue) { cuda_queue() = queue; }

std::string missing_cuda_code() {
  return cuda_queue().missing_code == nullptr ? "" : cuda_queue().missing_code();
}

std::string cuda_prefix_attention() {
  if (cuda_queue().prefix == nullptr) return "";
  return "torch's flash attention where it is faster: A_out is rounded to the type of q there";
}

bool has_graphs(at::Device device) { return device.is_cuda() && cuda_queue().capture != nullptr; }

std::unique_ptr<DeviceGraph> capture_graph(at::Device device, const std::function<void()>& work) {
  TORCH_CHECK(has_graphs(device), "capture_graph: expected a device with graphs, got ", device);
  TORCH_CHECK(!captures, "capture_graph: called by work that is being captured");
  const c10::DeviceGuard guard(device);
  const Capturing capturing;
  return cuda_queue().capture(work);
}

bool captures_graph() { return captures; }

at::Tensor copied_to(const at::Tensor& host, at::Device device) {
  if (host.device() == device) return host;
  TORCH_CHECK(!captures, "copied_to: a graph can't record a copy from the host");
  return host.pin_memory().to(device, host.scalar_type(), /*non_blocking=*/true);
}

DeviceScope::DeviceScope(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().is_cpu()) return;
  on_device_ = true;
  guard_.reset_device(tensor.device());
  if (tensor.device().is_cuda() && cuda_queue().enqueue) queue_ = &cuda_queue();
}

}  // namespace blockscope
