// How many threads can run at once.
#pragma once

namespace blockscope {

/// The logical cores that a scheduler or taskset left this process. At least 1.
unsigned cores_of_process();
/// The number of cores whose time the control group allows, such as 1.5; 0: no limit.
double cores_of_control_group();
/// The smaller one of both, rounded up.
unsigned available_cores();

}  // namespace blockscope
