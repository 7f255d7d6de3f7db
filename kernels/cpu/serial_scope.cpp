#include "kernels/cpu/cpu_support.h"
#include "kernels/cuda/device_support.h"
#include "kernels/ops.h"

namespace blockscope {
namespace {
thread_local bool serial = false;
thread_local bool trusted_sets = false;
}  // namespace

SerialScope::SerialScope() : before_(serial) { serial = true; }
SerialScope::~SerialScope() { serial = before_; }

bool runs_serially() { return serial; }

TrustedSetsScope::TrustedSetsScope() : before_(trusted_sets) { trusted_sets = true; }
TrustedSetsScope::~TrustedSetsScope() { trusted_sets = before_; }

bool trusts_sets() { return trusted_sets; }

}  // namespace blockscope
