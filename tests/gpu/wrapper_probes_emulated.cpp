// The probes for the emulator.
#include "tests/gpu/wrapper_probes.cuh"
