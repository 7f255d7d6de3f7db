// Every name of the dialect on this machine's GPU against the emulator: the emulator executes
// nothing of kernels/device/cuda_device.h, so no other test covers it. Bit for bit,
// except sums of tensor cores and library functions, which may round differently. Exit status 77
// without a driver.
//   ctest --preset cuda -R gpu.conformance, or build/cuda/tests/test_conformance [SEED]
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/gpu/wrapper_probes.cuh"

namespace blockscope {
namespace {

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::printf("CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

// Random words; every fourth as a float of moderate size, some special ones.
std::vector<uint32_t> make_words(uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint32_t> words(kProbeWords);
  for (uint32_t& word : words) word = random();
  for (int i = 0; i < kProbeWords; i += 4) {
    const float moderate = static_cast<float>(static_cast<int32_t>(words[i])) * 0x1p-20f;
    std::memcpy(&words[i], &moderate, 4);
  }
  // Zeros, ones, halfway cases of both 16-bit types, subnormals, largest numbers, infinities, NaN.
  const uint32_t special[] = {0x00000000, 0x80000000, 0x3f800000, 0x3f808000, 0x3f818000,
                              0x3f801000, 0x3f803000, 0x33000000, 0x33000001, 0x33800000,
                              0x387fc000, 0x387fe000, 0x38800000, 0x477fe000, 0x477ff000,
                              0x47800000, 0x00000001, 0x007fffff, 0x00008000, 0x7f7fffff,
                              0x7f7f8000, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001};
  std::memcpy(words.data(), special, sizeof special);
  return words;
}

float as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// Allowed distance of two results; 0: the bits must be equal.
double tolerance(const std::string& name, float expected) {
  const double size = std::fabs(static_cast<double>(expected));
  if (name.find("sums") != std::string::npos) return 16.0 * 0x1p-22;  // 16 products below 1
  if (name == "exp2_flushed") return size * 0x1p-21 + 0x1p-125;       // twice 2^-22
  if (name == "expf, logf, log2f, fmaf") return size * 0x1p-21 + 0x1p-22;
  return 0.0;
}

// NaN is NaN, whatever its sign and payload; rounded 16-bit results are in the low half.
bool is_nan(const std::string& name, uint32_t bits) {
  if (name == "round_to bfloat16") return (bits & 0x7fffu) > 0x7f80u;
  if (name == "round_to float16") return (bits & 0x7fffu) > 0x7c00u;
  const bool floats =
      name.find("float") != std::string::npos || name.find("exp") != std::string::npos;
  return floats && std::isnan(as_float(bits));
}

bool agree(const std::string& name, uint32_t got, uint32_t expected) {
  if (got == expected || (is_nan(name, got) && is_nan(name, expected))) return true;
  const double distance =
      std::fabs(static_cast<double>(as_float(got)) - static_cast<double>(as_float(expected)));
  return distance <= tolerance(name, as_float(expected)) &&
         tolerance(name, as_float(expected)) > 0.0;
}

int run(uint32_t seed) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no CUDA device, or no driver for CUDA 13; skipped\n");
    return 77;
  }
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, 0));
  std::printf("%s, sm_%d%d, seed %u; shared_limit() %d\n", properties.name, properties.major,
              properties.minor, seed, cuda::shared_limit());
  const std::vector<uint32_t> words = make_words(seed);
  uint32_t* in = nullptr;
  uint32_t* out = nullptr;
  check(cudaMalloc(&in, kProbeWords * 4));
  check(cudaMalloc(&out, kProbeResults * 4));
  check(cudaMemcpy(in, words.data(), kProbeWords * 4, cudaMemcpyHostToDevice));
  int failed = 0;
  for (int probe = 0; emulated::probe_name(probe) != nullptr; ++probe) {
    const std::string name = emulated::probe_name(probe);
    std::vector<uint32_t> got(kProbeResults);
    std::vector<uint32_t> expected(kProbeResults);
    emulated::run_probe(probe, words.data(), expected.data(), nullptr);
    check(cudaMemset(out, 0, kProbeResults * 4));
    cuda::run_probe(probe, in, out, nullptr);
    check(cudaDeviceSynchronize());
    check(cudaMemcpy(got.data(), out, kProbeResults * 4, cudaMemcpyDeviceToHost));
    int wrong = 0;
    for (int i = 0; i < kProbeResults; ++i) {
      if (agree(name, got[i], expected[i])) continue;
      if (wrong++ < 3) std::printf("  [%d] GPU %08x, emulator %08x\n", i, got[i], expected[i]);
    }
    std::printf("%-32s %s\n", name.c_str(), wrong == 0 ? "same" : "DIFFERENT");
    failed += wrong == 0 ? 0 : 1;
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace blockscope

int main(int count, char** arguments) {
  const unsigned long seed =
      count > 1 ? std::strtoul(arguments[1], nullptr, 10) : std::random_device{}();
  return blockscope::run(static_cast<uint32_t>(seed));
}
