// WeightSpread compiled for GPUs.
#include "kernels/cuda/weight_spread_device.cuh"
