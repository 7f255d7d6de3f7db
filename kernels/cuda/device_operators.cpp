#include "kernels/cuda/device_operators.h"

#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <map>
#include <utility>
#include <vector>

namespace blockscope {
namespace {

// Filled while a library is loaded, before any call on its device.
DeviceQueue& cuda_queue() {
  static DeviceQueue queue;
  return queue;
}

// The copies that the graph which this thread captures reads; null: it captures none.
thread_local std::vector<at::Tensor>* captured_copies = nullptr;

class Capturing {
 public:
  explicit Capturing(std::vector<at::Tensor>& copies) { captured_copies = &copies; }
  ~Capturing() { captured_copies = nullptr; }
  Capturing(const Capturing&) = delete;
  Capturing& operator=(const Capturing&) = delete;
};

// The graphs of a device share memory: a launch may overwrite what another graph has computed.
class OnlyGraph {
 public:
  OnlyGraph() {
    TORCH_CHECK(!alive().exchange(true), "capture_graph: expected no other graph to be alive");
  }
  ~OnlyGraph() { alive() = false; }
  OnlyGraph(const OnlyGraph&) = delete;
  OnlyGraph& operator=(const OnlyGraph&) = delete;

 private:
  static std::atomic<bool>& alive() {
    static std::atomic<bool> one = false;
    return one;
  }
};

class GraphWithCopies final : public DeviceGraph {
 public:
  explicit GraphWithCopies(const std::function<void()>& work) {
    const Capturing capturing(copies_);
    graph_ = cuda_queue().capture(work);
  }
  void launch() override { graph_->launch(); }

 private:
  OnlyGraph only_;
  std::vector<at::Tensor> copies_;
  std::unique_ptr<DeviceGraph> graph_;
};

struct KeptCopy {
  at::Tensor there;
  c10::Stream stream;  // the copy was queued on it; other streams may not see the copy yet
};
using KeptKey = std::pair<std::vector<int64_t>, std::string>;  // device, type and sizes; values
constexpr size_t kMostKeptCopies = 1024;
constexpr size_t kMostKeptBytes = size_t{256} << 10;

}  // namespace

void set_cuda_queue(const DeviceQueue& queue) { cuda_queue() = queue; }

std::string missing_cuda_code() {
  return cuda_queue().missing_code == nullptr ? "" : cuda_queue().missing_code();
}

std::string cuda_prefix_attention() {
  if (cuda_queue().prefix == nullptr) return "";
  return "torch's flash attention where it is faster: A_out is rounded to the type of q there";
}

GroupedProduct grouped_product_of(at::Device device, at::ScalarType type) {
  const DeviceQueue& queue = cuda_queue();
  if (!device.is_cuda() || queue.grouped == nullptr) return nullptr;
  const c10::DeviceGuard guard(device);
  return queue.groups == nullptr || queue.groups(type) ? queue.grouped : nullptr;
}

bool has_graphs(at::Device device) { return device.is_cuda() && cuda_queue().capture != nullptr; }

std::unique_ptr<DeviceGraph> capture_graph(at::Device device, const std::function<void()>& work) {
  TORCH_CHECK(has_graphs(device), "capture_graph: expected a device with graphs, got ", device);
  TORCH_CHECK(!captures_graph(), "capture_graph: called by work that is being captured");
  const c10::DeviceGuard guard(device);
  return std::make_unique<GraphWithCopies>(work);
}

bool captures_graph() { return captured_copies != nullptr; }

at::Tensor copied_to(const at::Tensor& host, at::Device device) {
  if (host.device() == device) return host;
  TORCH_CHECK(!captures_graph(), "copied_to: a graph can't record a copy from the host");
  return host.pin_memory().to(device, host.scalar_type(), /*non_blocking=*/true);
}

at::Tensor kept_copy(const at::Tensor& host, at::Device device) {
  if (host.device() == device || host.nbytes() > kMostKeptBytes) return copied_to(host, device);
  // When the newer copies are too many, they become the older ones, and only what is used stays.
  thread_local std::map<KeptKey, KeptCopy> newer, older;
  const at::Tensor values = host.contiguous();
  KeptKey key;
  key.first = {device.index(), static_cast<int64_t>(values.scalar_type())};
  key.first.insert(key.first.end(), values.sizes().begin(), values.sizes().end());
  key.second.assign(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  if (auto used = older.extract(key)) newer.insert(std::move(used));
  const auto found = newer.find(key);
  if (found != newer.end() && (captures_graph() || found->second.stream == stream)) {
    if (captures_graph()) captured_copies->push_back(found->second.there);
    return found->second.there;
  }
  at::Tensor copy = copied_to(values, device);
  if (newer.size() >= kMostKeptCopies) older = std::exchange(newer, {});
  newer.insert_or_assign(std::move(key), KeptCopy{copy, stream});
  return copy;
}

DeviceScope::DeviceScope(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().is_cpu()) return;
  on_device_ = true;
  guard_.reset_device(tensor.device());
  if (tensor.device().is_cuda() && cuda_queue().enqueue) queue_ = &cuda_queue();
}

}  // namespace blockscope
