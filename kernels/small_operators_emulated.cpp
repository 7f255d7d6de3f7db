// The smaller operators compiled for the emulator.
#include "kernels/small_operators_device.cuh"
