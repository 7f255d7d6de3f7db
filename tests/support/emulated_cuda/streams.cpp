#include "tests/support/emulated_cuda/streams.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <deque>
#include <numeric>
#include <utility>

namespace blockscope::emulated_cuda {
namespace {

bool lost = false;
int64_t tasks_left = 0;  // until the device is lost; 0: it stays

void check_lost() {
  if (!lost) return;
  constexpr int32_t kLaunchFailure = 719;
  throw c10::AcceleratorError(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, kLaunchFailure,
      "CUDA error: unspecified launch failure\nCUDA kernel errors might be asynchronously reported "
      "at some other API call, so the stacktrace below might be incorrect.");
}

struct Queue {
  std::deque<std::function<void()>> tasks;
  int64_t done = 0;

  int64_t end() const { return done + static_cast<int64_t>(tasks.size()); }

  void run_to(int64_t position) {
    while (done < position) {
      if (tasks_left > 0 && --tasks_left == 0) lost = true;
      check_lost();
      const std::function<void()> task = std::move(tasks.front());
      // An event that this task waits for may need tasks before it, never the task itself.
      tasks.pop_front();
      try {
        task();
      } catch (...) {
        ++done;
        throw;
      }
      ++done;
    }
  }
};

// A queue without a waiting caller keeps its tasks' memory; at this length it runs by itself.
constexpr size_t kLongestQueue = 20000;

struct Queues {
  std::deque<Queue> streams{1};  // 0: the default stream; a deque, as running one may make another
  Counters counters;
};

Queues& queues() {
  static auto* const made = new Queues;  // never destroyed: tensors may outlive main
  return *made;
}

Queue& queue(int64_t stream) {
  TORCH_CHECK(stream >= 0 && stream < std::ssize(queues().streams), "emulated CUDA: no stream ",
              stream);
  return queues().streams[static_cast<size_t>(stream)];
}

using Tasks = std::vector<std::function<void()>>;

struct Capture {
  int64_t stream = 0;
  // Tasks hold memory, which is given back under the device's lock.
  std::shared_ptr<Tasks> tasks{new Tasks, [](Tasks* gone) {
                                 const std::scoped_lock lock(device_mutex());
                                 delete gone;
                               }};
};

thread_local Capture* capture = nullptr;
thread_local int64_t current = 0;
thread_local int64_t waits_of_thread = 0;

std::function<void()>& event_hold() {
  static auto* const made = new std::function<void()>;
  return *made;
}

void count_wait(const std::string& what) {
  ++queues().counters.waits[what];
  ++waits_of_thread;
}

double milliseconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(now).count();
}

}  // namespace

int64_t Counters::host_waits() const {
  return std::accumulate(waits.begin(), waits.end(), int64_t{0},
                         [](int64_t sum, const auto& entry) { return sum + entry.second; });
}

Counters& mutable_counters() { return queues().counters; }

Counters counters() {
  const std::scoped_lock lock(device_mutex());
  return queues().counters;
}

void reset_counters() {
  const std::scoped_lock lock(device_mutex());
  queues().counters = {};
}

int64_t waits_of_this_thread() { return waits_of_thread; }

void before_event_waits(std::function<void()> hold) {
  const std::scoped_lock lock(device_mutex());
  event_hold() = std::move(hold);
}

int64_t pending_tasks() {
  const std::scoped_lock lock(device_mutex());
  int64_t result = 0;
  for (const Queue& each : queues().streams) result += std::ssize(each.tasks);
  return result;
}

int64_t current_stream_id() { return current; }

const void* captured_graph() { return capture == nullptr ? nullptr : capture->tasks.get(); }

void refuse_in_capture(const char* what) {
  if (capture == nullptr) return;
  constexpr int32_t kCaptureUnsupported = 900;
  throw c10::AcceleratorError(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, kCaptureUnsupported,
      std::string("CUDA error: operation not permitted when stream is capturing: ") + what);
}

Graph::Graph(const std::function<void()>& work) {
  refuse_in_capture("another capture");
  static const int64_t stream = new_stream();
  Capture mine{stream};
  const int64_t before = exchange_stream(stream);
  const auto end = [&] {
    capture = nullptr;
    exchange_stream(before);
  };
  capture = &mine;
  try {
    work();
  } catch (...) {
    end();
    throw;
  }
  end();
  tasks_ = std::move(mine.tasks);
  const std::scoped_lock lock(device_mutex());
  ++queues().counters.captures;
}

void Graph::launch() const {
  refuse_in_capture("the launch of a graph");
  const std::scoped_lock lock(device_mutex());
  ++queues().counters.graphs;
  for (size_t i = 0; i < tasks_->size(); ++i) {
    enqueue(current, [tasks = tasks_, i] { (*tasks)[i](); });
  }
}

int64_t exchange_stream(int64_t id) {
  const std::scoped_lock lock(device_mutex());
  (void)queue(id);
  return std::exchange(current, id);
}

int64_t new_stream() {
  const std::scoped_lock lock(device_mutex());
  queues().streams.emplace_back();
  return std::ssize(queues().streams) - 1;
}

void lose_device_at(int64_t task) {
  const std::scoped_lock lock(device_mutex());
  lost = false;
  tasks_left = task;
}

bool is_lost() { return lost; }

void enqueue(int64_t stream, std::function<void()> task) {
  const std::scoped_lock lock(device_mutex());
  check_lost();
  if (capture != nullptr) {
    if (stream != capture->stream) refuse_in_capture("work of another stream");
    capture->tasks->push_back(std::move(task));
    return;
  }
  Queue& into = queue(stream);
  into.tasks.push_back(std::move(task));
  if (into.tasks.size() > kLongestQueue) into.run_to(into.end());
}

void run_stream(int64_t stream) {
  refuse_in_capture("waiting");
  const std::scoped_lock lock(device_mutex());
  queue(stream).run_to(queue(stream).end());
}

void run_all() {
  for (size_t i = 0; i < queues().streams.size(); ++i) run_stream(static_cast<int64_t>(i));
}

bool stream_is_empty(int64_t stream) {
  const std::scoped_lock lock(device_mutex());
  return queue(stream).tasks.empty();
}

void host_wait(int64_t stream, const std::string& what) {
  refuse_in_capture(what.c_str());
  const std::scoped_lock lock(device_mutex());
  count_wait(what);
  check_lost();
  if (stream < 0) {
    run_all();
  } else {
    run_stream(stream);
  }
}

void free_in_stream_order(std::shared_ptr<Block> block) {
  const std::scoped_lock lock(device_mutex());
  ++queues().counters.frees;
  if (is_lost()) return;  // a destructor's work: the tasks of this memory will never run
  // Memory that a graph took stays the graph's: only what it gave back within it is poisoned, each
  // time that it comes to that point.
  if (block->graph != nullptr && block->graph != captured_graph()) return;
  const int64_t home = block->stream;
  if (block->graph != nullptr && home != capture->stream) return;  // of work that was refused
  Capture* const within = block->graph == nullptr ? std::exchange(capture, nullptr) : capture;
  for (const int64_t user : block->users) {
    const int64_t position = queue(user).end();
    enqueue(home, [user, position] { queue(user).run_to(position); });
  }
  enqueue(home, [block = std::move(block)] { poison(*block); });
  capture = within;
}

void record(Event& event, int64_t stream) {
  refuse_in_capture("an event");
  const std::scoped_lock lock(device_mutex());
  event.reached = std::make_shared<double>(0.0);
  enqueue(stream, [reached = event.reached] { *reached = milliseconds(); });
  event.stream = stream;
  event.position = queue(stream).end();
}

void wait_on_stream(const Event& event, int64_t stream) {
  refuse_in_capture("an event");
  if (event.stream < 0 || event.stream == stream) return;
  enqueue(stream, [from = event.stream, to = event.position] { queue(from).run_to(to); });
}

bool is_reached(const Event& event) {
  refuse_in_capture("an event");
  const std::scoped_lock lock(device_mutex());
  if (event.stream < 0 || queue(event.stream).done >= event.position) return true;
  queue(event.stream).run_to(event.position);
  return false;
}

void host_wait(const Event& event) {
  refuse_in_capture("an event");
  std::function<void()> hold;
  {
    const std::scoped_lock lock(device_mutex());
    if (event.stream < 0 || queue(event.stream).done >= event.position) return;  // no wait
    hold = event_hold();
  }
  if (hold) hold();
  const std::scoped_lock lock(device_mutex());
  count_wait("event");
  queue(event.stream).run_to(event.position);
}

void launch_on_current_stream(std::function<void()> kernel) {
  const std::scoped_lock lock(device_mutex());
  ++queues().counters.launches;
  enqueue(current, [kernel = std::move(kernel)] {
    const DeviceAccess access;
    kernel();
  });
}

}  // namespace blockscope::emulated_cuda
