// Makes this process's large writes of zeros leave holes in the file instead.
#pragma once

namespace blockscope::testing {

/// From now on; for a file system with holes (ext4, xfs, tmpfs), elsewhere zeros are written.
void leave_zeros_out_of_files();

}  // namespace blockscope::testing
