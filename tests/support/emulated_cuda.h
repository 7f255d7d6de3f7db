// A `cuda:0` that computes on the CPU, in a process without libtorch_cuda: code with at::kCUDA,
// c10::Stream, c10::Event and pinned memory runs unchanged. Mistakes that fail on a GPU only by
// chance fail here every time:
//   - Host code that dereferences a device pointer crashes, because the pages of device pointers
//   are
//     protected. The CPU operators below work through a second mapping of the same pages. Reading
//     after a tensor's end crashes too.
//   - `empty` memory, freed memory and the target of a pending copy to pinned memory hold NaN.
//   - Work waits in its stream until the host, or a stream that waits for an event, must wait for
//   it.
//     Reading on another stream without an event gives the old values.
// Time is not imitated. It must not share a process with libtorch_cuda. See emulated_cuda/ for the
// parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace blockscope::emulated_cuda {

/// Queues an emulated kernel on the calling thread's current stream. It runs with DeviceAccess, so
/// it may dereference device pointers; memory freed after this call still is as it was when the
/// kernel runs.
void launch_on_current_stream(std::function<void()> kernel);

/// A CUDA graph, captured on a stream of its own: it keeps the work that `work` queues and runs
/// none of it. Calls that a GPU refuses within a capture throw: waiting, events, other streams, and
/// copies from and to the host. Pinned memory throws too, because another owner soon gets it.
/// Memory that the work allocated stays its own until the graph is destroyed. Memory that the work
/// freed is NaN after every launch. Memory of others that it read is NaN once they have freed it.
class Graph {
 public:
  explicit Graph(const std::function<void()>& work);
  void launch() const;  // queues all of it on the calling thread's current stream

 private:
  std::shared_ptr<const std::vector<std::function<void()>>> tasks_;
};

/// While one lives, device pointers can be dereferenced: in emulated kernels, and in tests that
/// look inside.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

struct Counters {
  int64_t operators = 0;  // ATen operators queued or run by the device, and
  int64_t views = 0;      // those of them that touch no memory
  int64_t launches = 0;   // emulated kernels
  int64_t captures = 0;   // graphs made; what they keep is counted as it is captured
  int64_t graphs = 0;     // launches of them
  int64_t bytes_to_host = 0;
  int64_t bytes_to_device = 0;
  int64_t frees = 0;  // blocks given back
  std::map<std::string, int64_t>
      waits;  // host calls that had to wait for the device, by their name
  std::map<std::string, int64_t>
      uncommon;  // operators that ran at once, as their result's shape is not known before
  int64_t host_waits() const;
};
Counters counters();
void reset_counters();
/// Host calls of the calling thread that had to wait for the device, since it began.
int64_t waits_of_this_thread();

/// Called by every thread that is about to wait for an event, as a GPU that is slow would hold it
/// up; may block. An empty function: nothing is delayed.
void before_event_waits(std::function<void()> hold);

/// Bytes that the device has (8 GiB at first); an allocation over it throws c10::OutOfMemoryError.
void set_memory_limit(size_t bytes);
size_t allocated_bytes();

/// The device is lost at the n-th task from now, from 1. That task and all after it don't run.
/// Every later wait or launch throws the c10::AcceleratorError of a GPU. 0: the device is not lost.
void lose_device_at(int64_t task);

/// The environment variable EMULATED_CUDA says which faults a preloaded device has, as
/// "memory=BYTES,lose=TASK,driver=none|old|no-gpu,code=none".
/// Whether it says that the GPU is of a kind that kernels were not compiled for.
bool lacks_code();

/// Tasks of all streams that have not run yet.
int64_t pending_tasks();

}  // namespace blockscope::emulated_cuda
