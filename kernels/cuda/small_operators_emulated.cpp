// The smaller operators compiled for the emulator.
#include "kernels/cuda/small_operators_device.cuh"
