// Streams: queues of tasks that run in order when a caller must wait, on the thread that waits. The
// caller is the host, or a stream that reaches an event of another. Without a caller they never
// run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "tests/support/emulated_cuda.h"
#include "tests/support/emulated_cuda/device_memory.h"

namespace blockscope::emulated_cuda {

int64_t current_stream_id();
int64_t exchange_stream(int64_t id);  // of this thread; returns the one before
int64_t new_stream();

void enqueue(int64_t stream, std::function<void()> task);
void run_all();  // everything queued on every stream
void run_stream(int64_t stream);
bool stream_is_empty(int64_t stream);

/// The host waits: for a stream, or for all (-1). `what` is what is counted.
void host_wait(int64_t stream, const std::string& what);

/// Names the graph that this thread captures; null: none. `what` can't be kept in one: throws then.
const void* captured_graph();
void refuse_in_capture(const char* what);

/// Poisons the block and gives it back when its stream, and those it was recorded for, come to this
/// point.
void free_in_stream_order(std::shared_ptr<Block> block);

struct Event {
  int64_t stream = -1;  // -1: never recorded
  int64_t position = 0;
  std::shared_ptr<double> reached = std::make_shared<double>(0.0);  // ms, when it came to be
};
void record(Event& event, int64_t stream);
void wait_on_stream(const Event& event, int64_t stream);
bool is_reached(const Event& event);  // late: the second call says true
void host_wait(const Event& event);

bool is_lost();

Counters& mutable_counters();  // under device_mutex()

}  // namespace blockscope::emulated_cuda
