// The processes of the viewers: one for each person, so that a crash, a replaced file or a hanging
// disk concerns nobody else.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <vector>

namespace blockscope {

struct ViewerProcess {
  pid_t process = -1;  ///< -1: the system can't begin another one
  int socket = -1;     ///< not blocking
};

/// Forks a process that runs `view` on the other end of the socket, and ends. It keeps none of the
/// descriptors below `descriptors`. The caller must have one thread.
ViewerProcess begin_viewer(const std::function<void(int socket)>& view, int descriptors);

/// Processes whose socket is closed: they end by themselves, unless they hang.
class LeavingProcesses {
 public:
  void add(pid_t process);
  /// Takes leave of those that have ended, and kills those that hang. One that even that does not
  /// end (it waits for a disk) is left to the system.
  void look();
  /// Until none is left; three seconds at most.
  void wait();

 private:
  struct Leaving {
    pid_t process;
    std::chrono::steady_clock::time_point since;
  };
  std::vector<Leaving> leaving_;
};

}  // namespace blockscope
