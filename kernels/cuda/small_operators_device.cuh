// The kernels of the smaller operators, and their launches: compiled once for each backend.
#pragma once

#include "kernels/cuda/device_calls.h"
#include "kernels/cuda/page_device.cuh"
#include "kernels/cuda/prefill_device.cuh"
#include "kernels/cuda/row_device.cuh"
#include "kernels/cuda/row_ops_device.cuh"
#include "kernels/cuda/top_k_device.cuh"
