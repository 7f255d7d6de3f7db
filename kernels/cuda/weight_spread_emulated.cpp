// WeightSpread compiled for the emulator.
#include "kernels/cuda/weight_spread_device.cuh"
