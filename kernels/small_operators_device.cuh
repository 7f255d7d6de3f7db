// The kernels of the smaller operators, and their launches: compiled once for each world.
#pragma once

#include "kernels/device_calls.h"
#include "kernels/page_device.cuh"
#include "kernels/prefill_device.cuh"
#include "kernels/row_device.cuh"
#include "kernels/row_ops_device.cuh"
#include "kernels/top_k_device.cuh"
