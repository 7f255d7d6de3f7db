// The devices that `study time --predict` knows by name: one entry each, in the format of a file
// that a user gives (device_numbers.h). `cpu` is what scripts/bench/device_numbers.py printed.
#pragma once

namespace blockscope {

struct GivenDevice {
  const char* name;
  const char* numbers;  // JSON
};

// clang-format off
inline constexpr GivenDevice kGivenDevices[] = {{"h100", R"json({
  "device": "NVIDIA H100 SXM5 80 GB",
  "memory_bytes": {"value": 80e9, "source": "NVIDIA H100 data sheet"},
  "memory_bandwidth": {"value": 3.35e12, "source": "NVIDIA H100 data sheet"},
  "bandwidth_efficiency": {"value": 0.89, "source": "copy at 2.99 TB/s, docs/cuda.md, Operators"},
  "flops": {
    "bfloat16": {"value": 989e12, "source": "NVIDIA H100 data sheet, dense"},
    "float16": {"value": 989e12, "source": "NVIDIA H100 data sheet, dense"},
    "float32": {"value": 67e12, "source": "NVIDIA H100 data sheet, without TF32"}},
  "product_efficiency": {"value": 0.7, "source": "assumed, not measured"},
  "attention_efficiency": {"value": 0.5, "source": "assumed, not measured"},
  "launch_seconds": {"value": 5e-6, "source": "assumed, not measured; docs/cuda.md, Launches"},
  "link_bandwidth": {"value": 450e9, "source": "data sheet, NVLink 900 GB/s both ways"},
  "link_seconds": {"value": 20e-6, "source": "assumed, not measured"}})json"},
    {"a100", R"json({
  "device": "NVIDIA A100 SXM4 80 GB",
  "memory_bytes": {"value": 80e9, "source": "NVIDIA A100 data sheet"},
  "memory_bandwidth": {"value": 2.039e12, "source": "NVIDIA A100 data sheet"},
  "bandwidth_efficiency": {"value": 0.89, "source": "that of h100, not measured"},
  "flops": {
    "bfloat16": {"value": 312e12, "source": "NVIDIA A100 data sheet, dense"},
    "float16": {"value": 312e12, "source": "NVIDIA A100 data sheet, dense"},
    "float32": {"value": 19.5e12, "source": "NVIDIA A100 data sheet, without TF32"}},
  "product_efficiency": {"value": 0.7, "source": "assumed, not measured"},
  "attention_efficiency": {"value": 0.5, "source": "assumed, not measured"},
  "launch_seconds": {"value": 5e-6, "source": "assumed, not measured"},
  "link_bandwidth": {"value": 300e9, "source": "data sheet, NVLink 600 GB/s both ways"},
  "link_seconds": {"value": 20e-6, "source": "assumed, not measured"}})json"},
    {"cpu", R"json({
  "device": "2 cores of an AMD EPYC (AVX-512, bf16, no AMX)",
  "memory_bytes": {"value": 25.3e9, "source": "the system, 2026-11-26"},
  "memory_bandwidth": {"value": 46.2e9, "source": "plain reads of 1 GiB, 2026-11-26, torch 2.11.0"},
  "bandwidth_efficiency": {"value": 1, "source": "the bandwidth is a measured one"},
  "flops": {
    "bfloat16": {"value": 966e9, "source": "large products; same run"},
    "float32": {"value": 223e9, "source": "large products; same run"}},
  "product_efficiency": {"value": 0.505, "source": "bfloat16, 32 rows by weights from memory; same run"},
  "attention_efficiency": {"value": 0.155, "source": "bfloat16, torch's attention, 32 rows, 8,192 keys; same run"},
  "launch_seconds": {"value": 3.55e-6, "source": "32 rows of 2,048, times a number; same run"},
  "cache_bytes": {"value": 33.6e6, "source": "the last cache, from the system"},
  "cache_bandwidth": {"value": 177e9, "source": "plain reads of 4 MB; same run"}})json"}};
// clang-format on

}  // namespace blockscope
