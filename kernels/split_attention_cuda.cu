// split_attention compiled for GPUs.
#include "kernels/split_attention_device.cuh"
