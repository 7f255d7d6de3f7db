// The smaller operators compiled for GPUs.
#include "kernels/small_operators_device.cuh"
