#include "probe/run/device_option.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>

#include "cmake/build_info/build_info.h"
#include "decode_record/base/error.h"
#include "kernels/cuda/device_operators.h"

namespace blockscope {
namespace {

namespace fs = std::filesystem;

std::optional<at::Device> parse(std::string_view name) {
  if (name == "cpu") return at::Device(at::kCPU);
  if (name == "cuda") return at::Device(at::kCUDA, 0);
  constexpr std::string_view kPrefix = "cuda:";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  int index = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), index);
  constexpr int kMostDevices = 64;
  const bool whole = error == std::errc() && end == name.data() + name.size();
  if (!whole || index < 0 || index >= kMostDevices) return std::nullopt;
  return at::Device(at::kCUDA, static_cast<at::DeviceIndex>(index));
}

/// The folder of the library that holds a function.
fs::path folder_of(const void* function) {
  Dl_info info{};
  if (dladdr(function, &info) == 0 || info.dli_fname == nullptr) return {};
  return fs::absolute(info.dli_fname).parent_path();
}

/// Never closed: its worker threads and static destructors outlive the run.
void load(const fs::path& file, const std::string& hint) {
  if (dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr) return;
  const char* reason = dlerror();
  throw Error(fmt::format("--device cuda: can't load {}: {}. HINT: {}", file.string(),
                          reason == nullptr ? "unknown loader error" : reason, hint));
}

void load_libraries() {
  // If CUDA is already linked or preloaded, everything else that it needs is, too.
  if (at::CUDAHooksRegistry()->Has("CUDAHooks")) return;
  const fs::path torch = folder_of(reinterpret_cast<const void*>(&at::globalContext));
  const fs::path library = torch / "libtorch_cuda.so";
  std::error_code ignored;
  if (!fs::exists(library, ignored)) {
    throw Error(
        fmt::format("--device cuda: expected {}, found no such file: this LibTorch has no CUDA "
                    "part. HINT: pip install "
                    "torch=={} brings it; put its torch/lib first in LD_LIBRARY_PATH, or build "
                    "with LIBTORCH_ROOT set "
                    "to its torch folder",
                    library.string(), build_info().torch_pin));
  }
  load(library, "it needs NVIDIA's libraries, which pip install torch brings with it");
  const fs::path kernels =
      folder_of(reinterpret_cast<const void*>(&open_device)) / "libblockscope_kernels_cuda.so";
  if (!fs::exists(kernels, ignored)) {
    fmt::print(stderr,
               "--device cuda: no {}: attention uses torch operators, which are slower. HINT: "
               "cmake --preset cuda builds it\n",
               kernels.string());
    return;
  }
  load(kernels, "build it against this LibTorch: cmake --preset cuda");
}

/// LibTorch's message about a missing or too old driver or a missing GPU; empty: no problem.
std::string driver_problem() {
  if (!at::CUDAHooksRegistry()->Has("CUDAHooks")) return "";
  try {
    at::globalContext().lazyInitDevice(at::kCUDA);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    return text.substr(0, text.find_first_of(".\n"));
  }
  return "";
}

}  // namespace

int gpu_of_rank(std::optional<int64_t> local_rank, int devices) {
  return devices < 1 ? 0 : static_cast<int>(local_rank.value_or(0) % devices);
}

at::Device open_device(const std::string& name, std::optional<int64_t> local_rank) {
  std::optional<at::Device> device = parse(name);
  if (!device) {
    throw UsageError(fmt::format("--device: expected cpu, cuda or cuda:N, got '{}'", name));
  }
  if (device->is_cpu()) return *device;
  load_libraries();
  const std::string problem = driver_problem();
  const int devices =
      problem.empty() && at::hasCUDA() ? at::detail::getCUDAHooks().getNumGPUs() : 0;
  if (name == "cuda") {
    device->set_index(static_cast<at::DeviceIndex>(gpu_of_rank(local_rank, devices)));
  }
  if (device->index() >= devices) {
    throw Error(fmt::format(
        "--device {}: {}. HINT: it needs NVIDIA's driver for the CUDA of torch (CUDA 12: 525 or "
        "newer, CUDA 13: 580); blockscope doctor shows what this machine has; CUDA_VISIBLE_DEVICES "
        "hides GPUs; --device cpu needs no GPU",
        name,
        devices == 0 ? fmt::format("no GPU that this LibTorch can use{}{}",
                                   problem.empty() ? "" : ": ", problem)
                     : fmt::format("expected an index below {}, the GPUs visible", devices)));
  }
  c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(*device);
  if (const std::string missing = missing_cuda_code(); !missing.empty()) {
    throw Error(fmt::format(
        "--device {}: libblockscope_kernels_cuda.so has no code for this GPU ({}). HINT: cmake "
        "--preset cuda -DCMAKE_CUDA_ARCHITECTURES=native builds it for GPUs from compute "
        "capability 8.0 on; without that file attention uses torch operators",
        name, missing));
  }
  return *device;
}

namespace {

/// The free bytes of a device; 0 if torch (before 2.10) does not report them. A template, because
/// torch 2.8 lacks the first function too.
template <typename DeviceType>
int64_t free_memory(DeviceType type, at::DeviceIndex index) {
  if constexpr (requires { getDeviceAllocator(type)->getMemoryInfo(index); }) {
    return static_cast<int64_t>(getDeviceAllocator(type)->getMemoryInfo(index).first);
  }
  return 0;
}

}  // namespace

int64_t free_device_memory(at::Device device) { return free_memory(device.type(), device.index()); }

}  // namespace blockscope
