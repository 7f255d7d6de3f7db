// How LibTorch finds the device: its hooks and its guard, under the names that libtorch_cuda would
// use.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>

#include "tests/support/emulated_cuda/device_memory.h"
#include "tests/support/emulated_cuda/generator.h"
#include "tests/support/emulated_cuda/streams.h"

namespace blockscope::emulated_cuda {

const at::Generator& default_generator() {
  static const auto* const made = new at::Generator(at::make_generator<DeviceGenerator>());
  return *made;
}

namespace {

struct Faults {
  c10::DeviceIndex devices = 1;
  std::string driver;  // what is wrong with it
  bool lacks_code = false;
};

Faults read_faults() {
  Faults faults;
  const char* const text = std::getenv("EMULATED_CUDA");
  std::istringstream items(text == nullptr ? "" : text);
  for (std::string item; std::getline(items, item, ',');) {
    const size_t equals = std::min(item.find('='), item.size() - 1);
    const std::string name = item.substr(0, equals);
    const std::string value = item.substr(equals + 1);
    if (name == "memory") {
      set_memory_limit(std::stoull(value));
    } else if (name == "lose") {
      lose_device_at(std::stoll(value));
    } else if (name == "code") {
      faults.lacks_code = true;
    } else if (name == "driver") {
      faults.devices = 0;
      faults.driver =
          value == "none"
              ? "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU"
          : value == "old"
              ? "The NVIDIA driver on your system is too old (found version 12040). Please update"
              : "No CUDA GPUs are available";
    } else {
      std::fprintf(stderr, "EMULATED_CUDA: no fault \"%s\"\n", name.c_str());
      std::abort();
    }
  }
  return faults;
}

const Faults& faults() {
  static const Faults read = read_faults();
  return read;
}

// Before the first call, which may be about memory alone.
[[maybe_unused]] const bool faults_are_read = (faults(), true);

c10::Stream stream_of(int64_t id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, 0), id);
}

void check_index(c10::DeviceIndex index) {
  TORCH_CHECK(index <= 0, "CUDA error: invalid device ordinal");
}

class GuardImpl final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    check_index(device.index());
    return getDevice();
  }
  c10::Device getDevice() const override { return {c10::kCUDA, 0}; }
  void setDevice(c10::Device device) const override { check_index(device.index()); }
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return stream_of(current_stream_id()); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream_of(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    return stream_of(new_stream());
  }
  c10::Stream getNewStream(c10::Device, int) const override { return stream_of(new_stream()); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return stream_of(exchange_stream(stream.id()));
  }
  c10::DeviceIndex deviceCount() const noexcept override { return faults().devices; }

  bool queryStream(const c10::Stream& stream) const override {
    const bool done = stream_is_empty(stream.id());
    run_stream(stream.id());
    return done;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    host_wait(stream.id(), "stream");
  }
  void synchronizeDevice(c10::DeviceIndex) const override { host_wait(-1, "device"); }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event;
    emulated_cuda::record(*static_cast<Event*>(*event), stream.id());
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) wait_on_stream(*static_cast<Event*>(event), stream.id());
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || is_reached(*static_cast<Event*>(event));
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) host_wait(*static_cast<Event*>(event));
  }
  double elapsedTime(void* first, void* second, c10::DeviceIndex) const override {
    return *static_cast<Event*>(second)->reached - *static_cast<Event*>(first)->reached;
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    record_block_stream(data, stream.id());
  }
};

C10_REGISTER_GUARD_IMPL(CUDA, GuardImpl)

}  // namespace

bool lacks_code() { return faults().lacks_code; }

}  // namespace blockscope::emulated_cuda

namespace at {
namespace {

namespace emulated = blockscope::emulated_cuda;

struct EmulatedCudaHooks final : CUDAHooksInterface {
  explicit EmulatedCudaHooks(CUDAHooksArgs) {}

  void init() const override {
    const emulated::Faults& faults = emulated::faults();
    TORCH_CHECK(faults.devices > 0, faults.driver);
  }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return emulated::faults().devices > 0; }
  bool hasCUDART() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return emulated::faults().devices; }
  int getNumGPUs() const override { return emulated::faults().devices; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(DeviceIndex device) const override { emulated::check_index(device); }
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  bool isPinnedPtr(const void* data) const override { return emulated::is_pinned(data); }
  Allocator* getPinnedMemoryAllocator() const override { return emulated::pinned_allocator(); }
  Allocator* getCUDADeviceAllocator() const override { return emulated::device_allocator(); }
  Device getDeviceFromPtr(void* data) const override {
    TORCH_CHECK(emulated::is_device_pointer(data), "The specified pointer resides on host memory");
    return {kCUDA, 0};
  }
  const Generator& getDefaultGenerator(DeviceIndex) const override {
    return emulated::default_generator();
  }
  Generator getNewGenerator(DeviceIndex) const override {
    return make_generator<emulated::DeviceGenerator>();
  }
  void deviceSynchronize(DeviceIndex) const override { emulated::host_wait(-1, "device"); }
  std::string showConfig() const override { return "emulated CUDA"; }
};

C10_REGISTER_TYPED_CLASS(CUDAHooksRegistry, "CUDAHooks", EmulatedCudaHooks)

}  // namespace
}  // namespace at
