// DeviceGraph on a GPU. It needs only c10_cuda. at::cuda::CUDAGraph does the same, and also keeps
// the state of random numbers, but it needs libtorch_cuda.
#include "kernels/cuda/device_graph_cuda.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <map>
#include <mutex>
#include <utility>

namespace blockscope::cuda {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

// Torch numbers its own pools from 1 on.
constexpr c10::MempoolId_t kPool{0, 0xb10c'5c09'e000'0000};

// All graphs of a device are captured on one stream, so torch allocates its workspaces once. They
// use one pool that is never released, because torch refuses a released pool.
c10::cuda::CUDAStream capture_stream(c10::DeviceIndex device) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, c10::cuda::CUDAStream> streams;
  const std::scoped_lock lock(mutex);
  const auto found = streams.find(device);
  if (found != streams.end()) return found->second;
  allocator::createOrIncrefPool(device, kPool);
  // Not of torch's pool: its streams are given out again, and others queue work on them.
  cudaStream_t own = nullptr;
  C10_CUDA_CHECK(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
  return streams.emplace(device, c10::cuda::getStreamFromExternal(own, device)).first->second;
}

// Between begin() and end(), memory allocated on a stream comes from the graphs' pool.
class PoolUse {
 public:
  explicit PoolUse(c10::DeviceIndex device) : device_(device) {}
  PoolUse(const PoolUse&) = delete;
  PoolUse& operator=(const PoolUse&) = delete;
  ~PoolUse() {
    if (begun_) allocator::releasePool(device_, kPool);
  }
  void begin(cudaStream_t stream) {
    allocator::beginAllocateToPool(device_, kPool,
                                   [stream](cudaStream_t taking) { return taking == stream; });
    begun_ = true;
  }
  void end() const { allocator::endAllocateToPool(device_, kPool); }

 private:
  c10::DeviceIndex device_;
  bool begun_ = false;
};

class CudaGraph final : public DeviceGraph {
 public:
  explicit CudaGraph(const std::function<void()>& work)
      : device_(c10::cuda::current_device()), pool_(device_) {
    cudaGraph_t graph = captured(work);
    // The data of a graph with hundreds of kernels is uploaded at its first launch.
    const cudaError_t error = cudaGraphInstantiate(&graph_, graph, 0);
    C10_CUDA_CHECK_WARN(cudaGraphDestroy(graph));
    C10_CUDA_CHECK(error);
  }

  ~CudaGraph() override { C10_CUDA_CHECK_WARN(cudaGraphExecDestroy(graph_)); }

  void launch() override {
    C10_CUDA_CHECK(cudaGraphLaunch(graph_, c10::cuda::getCurrentCUDAStream(device_).stream()));
  }

 private:
  cudaGraph_t captured(const std::function<void()>& work) {
    const c10::cuda::CUDAStream stream = capture_stream(device_);
    const c10::cuda::CUDAStreamGuard guard(stream);
    cudaGraph_t graph = nullptr;
    pool_.begin(stream.stream());
    try {
      // Other threads may wait, allocate and copy during the capture.
      C10_CUDA_CHECK(cudaStreamBeginCapture(stream.stream(), cudaStreamCaptureModeThreadLocal));
      try {
        work();
      } catch (...) {
        (void)cudaStreamEndCapture(stream.stream(), &graph);
        if (graph != nullptr) (void)cudaGraphDestroy(graph);
        (void)cudaGetLastError();  // clear the error of the cut capture for the next caller
        throw;
      }
      C10_CUDA_CHECK(cudaStreamEndCapture(stream.stream(), &graph));
    } catch (...) {
      pool_.end();
      throw;
    }
    pool_.end();
    return graph;
  }

  c10::DeviceIndex device_;
  PoolUse pool_;
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace

std::unique_ptr<DeviceGraph> capture_graph(const std::function<void()>& work) {
  return std::make_unique<CudaGraph>(work);
}

}  // namespace blockscope::cuda
