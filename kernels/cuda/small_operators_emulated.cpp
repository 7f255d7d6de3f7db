// The smaller operators compiled for the emulator.
#define BLOCKSCOPE_COMPILES_LAUNCHES
#include "kernels/cuda/device_calls.h"
