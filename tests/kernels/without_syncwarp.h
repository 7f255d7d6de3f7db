// Included by the compiler before a kernel's source (-include): its __syncwarp does nothing.
#pragma once

#include "kernels/device/device.h"

#define __syncwarp(...) static_cast<void>(0)
