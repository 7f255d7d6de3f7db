// split_attention compiled for the emulator.
#include "kernels/split_attention_device.cuh"
