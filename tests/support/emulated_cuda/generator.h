#pragma once

#include <ATen/CPUGeneratorImpl.h>

#include <cstdint>

namespace blockscope::emulated_cuda {

/// A generator of the device: the CPU's algorithm, a state of its own.
class DeviceGenerator final : public at::CPUGeneratorImpl {
 public:
  explicit DeviceGenerator(uint64_t seed = c10::detail::getNonDeterministicRandom())
      : at::CPUGeneratorImpl(seed), host_(at::detail::createCPUGenerator(seed)) {
    device_ = c10::Device(c10::kCUDA, 0);
  }
  void set_current_seed(uint64_t seed) override {
    at::CPUGeneratorImpl::set_current_seed(seed);
    host_.set_current_seed(seed);
  }
  const at::Generator& host() const { return host_; }  // what the CPU's operators take

 private:
  at::Generator host_;
};

const at::Generator& default_generator();

inline at::Generator host_generator(const at::Generator& generator) {
  TORCH_CHECK(generator.device().is_cuda(),
              "Expected a 'cuda' device type for generator but found '", generator.device(), "'");
  return generator.get<DeviceGenerator>()->host();
}

}  // namespace blockscope::emulated_cuda
