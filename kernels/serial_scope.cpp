#include "kernels/cpu_support.h"
#include "kernels/ops.h"

namespace blockscope {
namespace {
thread_local bool serial = false;
}  // namespace

SerialScope::SerialScope() : before_(serial) { serial = true; }
SerialScope::~SerialScope() { serial = before_; }

bool runs_serially() { return serial; }

}  // namespace blockscope
