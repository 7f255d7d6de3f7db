// split_attention compiled for GPUs.
#include "kernels/cuda/split_attention_device.cuh"
