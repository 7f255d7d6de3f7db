// split_attention compiled for the emulator.
#include "kernels/cuda/split_attention_device.cuh"
