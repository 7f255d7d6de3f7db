// What libblockscope_kernels_cuda.so is on a GPU, for the fake cuda:0: loaded or preloaded, it
// gives the operators their kernels, executed by the emulator in the fake's streams. Without it
// the operators fall back to plain torch operators there.
#include "kernels/cuda/device_operators.h"
#include "tests/support/emulated_cuda.h"
#include "tests/support/emulated_launches.h"

namespace blockscope::testing {
namespace {

// Memory taken for the call may be given back as soon as this returns: the fake poisons it when its
// stream comes to that point, and only after the kernel.
void launch_on_current_stream(std::function<void(void* stream)> launch) {
  emulated_cuda::launch_on_current_stream([launch = std::move(launch)] { launch(nullptr); });
}

std::string missing_code() {
  return emulated_cuda::lacks_code() ? "compute capability 7.5, no kernel image" : "";
}

class EmulatedGraph final : public DeviceGraph {
 public:
  explicit EmulatedGraph(const std::function<void()>& work) : graph_(work) {}
  void launch() override { graph_.launch(); }

 private:
  emulated_cuda::Graph graph_;
};

std::unique_ptr<DeviceGraph> capture_graph(const std::function<void()>& work) {
  return std::make_unique<EmulatedGraph>(work);
}

[[maybe_unused]] const bool registered = [] {
  set_cuda_queue({emulated_launches(), launch_on_current_stream, missing_code, capture_graph,
                  plain_prefix, plain_grouped_product});
  return true;
}();

}  // namespace
}  // namespace blockscope::testing
