#include "kernels/device/emulator.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/device/fiber.h"
#include "kernels/device/race_detection.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) static_cast<void>(0)
#define ASAN_UNPOISON_MEMORY_REGION(address, size) static_cast<void>(0)
#endif

namespace blockscope::emulated {

thread_local Dim3 threadIdx;
thread_local Dim3 blockIdx;
thread_local Dim3 blockDim;
thread_local Dim3 gridDim;

namespace {

constexpr unsigned kWarp = 32;
constexpr int kPoison = 0xff;  // NaN in all three float types, -1 as an integer

struct Copy {
  char* to = nullptr;
  const char* from = nullptr;
  std::size_t bytes = 0;  // the rest of the 16 bytes becomes 0
};

enum class State { kRunnable, kAtBarrier, kAtWarp, kEnded };

struct Lane {
  Fiber fiber;
  State state = State::kEnded;
  const char* name = "";  // the instruction that it waits in
  std::source_location where;
  void* slot = nullptr;
  WarpWork work = nullptr;
  unsigned barriers = 0;       // barriers of the block that it reached
  unsigned warp_barriers = 0;  // barriers of its warp that it reached
  std::vector<Copy> open;      // copies issued since the last commit
  std::deque<std::vector<Copy>> committed;
};

std::string place(const std::source_location& where) {
  const std::string path = where.file_name();
  return path.substr(path.rfind('/') + 1) + ":" + std::to_string(where.line());
}

bool same_place(const Lane& a, const Lane& b) {
  const auto same = [](const char* x, const char* y) { return x == y || std::strcmp(x, y) == 0; };
  return a.where.line() == b.where.line() && a.where.column() == b.where.column() &&
         a.name == b.name && same(a.where.file_name(), b.where.file_name());
}

// The machine: one block at a time.
class Machine {
 public:
  Options options;
  Counters counters;

  void run_grid(Dim3 grid, Dim3 block, std::size_t shared_bytes,
                const std::function<void()>& body) {
    if (block.x == 0 || block.x % kWarp != 0 || block.y != 1 || block.z != 1) {
      throw Fault("launch: expected block.x a multiple of 32 and no y or z, got " +
                  std::to_string(block.x));
    }
    if (shared_bytes > static_cast<std::size_t>(options.shared_limit)) {
      throw Fault("launch: expected at most " + std::to_string(options.shared_limit) +
                  " bytes of shared memory, got " + std::to_string(shared_bytes));
    }
    body_ = &body;
    blockDim = block;
    gridDim = grid;
    num_threads_ = block.x;
    shared_bytes_ = shared_bytes;
    // Exactly the requested size, at an address that swizzled rows need.
    shared_owner_.reset(new (std::align_val_t{1024}) char[std::max<std::size_t>(shared_bytes, 1)]);
    while (lanes_.size() < num_threads_) lanes_.push_back(std::make_unique<Lane>());
    std::vector<std::size_t> order(std::size_t{grid.x} * grid.y * grid.z);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random_);
    for (const std::size_t i : order) {
      blockIdx = {static_cast<unsigned>(i % grid.x), static_cast<unsigned>(i / grid.x % grid.y),
                  static_cast<unsigned>(i / grid.x / grid.y)};
      run_block();
    }
    shared_owner_.reset();
  }

  void seed() { random_.seed(options.seed); }

  void wait(State state, const char* name, const std::source_location& where, void* slot,
            WarpWork work) {
    Lane& lane = *current_;
    lane.state = state;
    lane.name = name;
    lane.where = where;
    lane.slot = slot;
    lane.work = work;
    // A lane may reach the next barrier before another lane has left this one, but never the one
    // after that.
    char* const token = ordered_by(lane);
    if (token != nullptr) races::release(token);
    lane.fiber.yield();
    if (token != nullptr) races::acquire(token);
  }

  char* shared() { return shared_owner_.get(); }

  void copy(void* to, const void* from, int bytes, const std::source_location& where) {
    check_shared(to, 16, "copy_async_16", where);
    if (bytes < 0 || bytes > 16) fail(where, "copy_async_16: expected 0 to 16 bytes");
    if (bytes > 0 && reinterpret_cast<uintptr_t>(from) % 16 != 0) {
      fail(where, "copy_async_16: the source is not aligned to 16 bytes");
    }
    const Copy copy{static_cast<char*>(to), static_cast<const char*>(from),
                    static_cast<std::size_t>(bytes)};
    // Also read now, so AddressSanitizer names the kernel's line and not the wait's.
    char read[16];
    std::copy_n(copy.from, copy.bytes, read);
    ASAN_UNPOISON_MEMORY_REGION(to, 16);
    races::writes_16(to);
    std::memset(to, kPoison, 16);
    ASAN_POISON_MEMORY_REGION(to, 16);
    counters.copied_bytes += bytes;
    current_->open.push_back(copy);
  }

  void commit() {
    current_->committed.push_back(std::move(current_->open));
    current_->open.clear();
  }

  void wait_for_copies(int groups_left) {
    while (current_->committed.size() > static_cast<std::size_t>(groups_left)) {
      for (const Copy& copy : current_->committed.front()) {
        ASAN_UNPOISON_MEMORY_REGION(copy.to, 16);
        races::writes_16(copy.to);
        std::memset(copy.to, 0, 16);
        std::copy_n(copy.from, copy.bytes, copy.to);
      }
      current_->committed.pop_front();
    }
  }

  void check_shared(const void* pointer, std::size_t bytes, const char* name,
                    const std::source_location& where) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    const auto begin = reinterpret_cast<uintptr_t>(shared());
    if (address < begin || address + bytes > begin + shared_bytes_) {
      fail(where, std::string(name) + ": " + std::to_string(bytes) + " bytes at offset " +
                      std::to_string(static_cast<std::ptrdiff_t>(address - begin)) + " of " +
                      std::to_string(shared_bytes_) + " bytes of shared memory");
    }
    if (address % bytes != 0) fail(where, std::string(name) + ": address not aligned");
  }

  [[noreturn]] void fail(const std::source_location& where, const std::string& message) {
    throw Fault(message + ", at " + place(where) + ", thread " + std::to_string(threadIdx.x) +
                " of block " + std::to_string(blockIdx.x) + "," + std::to_string(blockIdx.y) + "," +
                std::to_string(blockIdx.z));
  }

 private:
  struct FreeShared {
    void operator()(char* memory) const { ::operator delete[](memory, std::align_val_t{1024}); }
  };

  static void lane_main();

  /// Token of lanes that wait together; null: this place orders nothing.
  char* ordered_by(Lane& lane) {
    if (lane.state == State::kAtBarrier) return &block_token_[lane.barriers++ % 2];
    if (std::strcmp(lane.name, "__syncwarp") != 0) return nullptr;
    return &warp_tokens_[threadIdx.x / kWarp * 2 + lane.warp_barriers++ % 2];
  }

  void run_block() {
    ASAN_UNPOISON_MEMORY_REGION(shared(), shared_bytes_);
    std::memset(shared(), kPoison, shared_bytes_);
    for (unsigned i = 0; i < num_threads_; ++i) {
      Lane& lane = *lanes_[i];
      lane.state = State::kRunnable;
      lane.open.clear();
      lane.committed.clear();
      lane.barriers = lane.warp_barriers = 0;
      lane.fiber.reset(&Machine::lane_main);
    }
    error_ = nullptr;
    const unsigned num_warps = num_threads_ / kWarp;
    warp_tokens_.resize(std::size_t{num_warps} * 2);
    races::release(&start_token_);
    std::vector<unsigned> order(num_warps);
    std::iota(order.begin(), order.end(), 0u);
    unsigned turns = 0;  // turns taken with this order of warps
    while (true) {
      // Runs the first runnable warp, until a barrier stops it or the order changes.
      if (turns == 0) {
        std::shuffle(order.begin(), order.end(), random_);
        turns = 1 + static_cast<unsigned>(random_()) % 512;
      }
      --turns;
      const auto ready = std::find_if(order.begin(), order.end(), [this](unsigned warp) {
        for (unsigned i = 0; i < kWarp; ++i) {
          if (lanes_[warp * kWarp + i]->state == State::kRunnable) return true;
        }
        return false;
      });
      if (ready != order.end()) {
        run_warp(*ready);
      } else if (!release_barrier()) {
        break;
      }
    }
    races::acquire(&end_token_);
    for (unsigned i = 0; i < num_threads_; ++i) {
      if (lanes_[i]->state != State::kEnded) throw Fault(table());
      if (!lanes_[i]->open.empty() || !lanes_[i]->committed.empty()) {
        threadIdx = {i, 0, 0};
        fail(std::source_location::current(), "a thread ended without waiting for its copies");
      }
    }
  }

  // Runs every runnable lane until it waits. If all lanes wait at one place, does the work of that
  // place.
  void run_warp(unsigned warp) {
    const auto turn = static_cast<unsigned>(random_());
    const unsigned first = turn % kWarp;
    const unsigned stride = turn / kWarp % kWarp | 1u;
    for (unsigned i = 0; i < kWarp; ++i) {
      const unsigned thread = warp * kWarp + (first + i * stride) % kWarp;
      Lane& lane = *lanes_[thread];
      if (lane.state != State::kRunnable) continue;
      current_ = &lane;
      threadIdx = {thread, 0, 0};
      lane.fiber.resume();
      if (error_) std::rethrow_exception(error_);
    }
    const Lane& first_lane = *lanes_[warp * kWarp];
    void* slots[kWarp];
    for (unsigned i = 0; i < kWarp; ++i) {
      const Lane& lane = *lanes_[warp * kWarp + i];
      if (lane.state != State::kAtWarp) return;  // ended lanes and barriers: run_block reports them
      if (!same_place(lane, first_lane)) throw Fault(table());
      slots[i] = lane.slot;
    }
    {
      const races::Ignored of_the_warp;
      first_lane.work(slots);
    }
    for (unsigned i = 0; i < kWarp; ++i) lanes_[warp * kWarp + i]->state = State::kRunnable;
  }

  // Whether every thread waits at one barrier.
  bool release_barrier() {
    for (unsigned i = 0; i < num_threads_; ++i) {
      if (lanes_[i]->state != State::kAtBarrier || !same_place(*lanes_[i], *lanes_[0]))
        return false;
    }
    for (unsigned i = 0; i < num_threads_; ++i) lanes_[i]->state = State::kRunnable;
    ++counters.barriers;
    return true;
  }

  // A line per group of threads that wait together.
  std::string table() const {
    std::ostringstream text;
    text << "threads of block " << blockIdx.x << "," << blockIdx.y << "," << blockIdx.z
         << " wait for each other:";
    const auto stand = [this](unsigned i) {
      const Lane& lane = *lanes_[i];
      if (lane.state == State::kEnded) return std::string("ended");
      if (lane.state == State::kRunnable) return std::string("can run");
      return std::string(lane.name) + " at " + place(lane.where);
    };
    for (unsigned begin = 0; begin < num_threads_;) {
      unsigned end = begin + 1;
      while (end < num_threads_ && stand(end) == stand(begin)) ++end;
      text << "\n  threads " << begin << " to " << end - 1 << ": " << stand(begin);
      begin = end;
    }
    return text.str();
  }

  std::mt19937_64 random_{1};
  const std::function<void()>* body_ = nullptr;
  unsigned num_threads_ = 0;
  std::size_t shared_bytes_ = 0;
  std::unique_ptr<char, FreeShared> shared_owner_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  Lane* current_ = nullptr;
  std::exception_ptr error_;
  // Two tokens per barrier, used in turns. The start and the end of a block's lanes have separate
  // tokens, or a lane that ends would order lanes that start.
  char block_token_[2] = {};
  std::vector<char> warp_tokens_;
  char start_token_ = 0;
  char end_token_ = 0;
};

Machine& machine() {
  static thread_local Machine instance;
  return instance;
}

void Machine::lane_main() {
  Machine& self = machine();
  Lane& lane = *self.current_;
  races::acquire(&self.start_token_);
  try {
    (*self.body_)();
  } catch (...) {
    self.error_ = std::current_exception();
  }
  races::release(&self.end_token_);
  lane.state = State::kEnded;
  lane.fiber.yield();
}

}  // namespace

void set_options(const Options& options) {
  machine().options = options;
  machine().seed();
}

Counters& counters() { return machine().counters; }

Rounding rounding() { return machine().options.rounding; }

int shared_limit() { return machine().options.shared_limit; }

void run_grid(Dim3 grid, Dim3 block, std::size_t shared_bytes, const std::function<void()>& body) {
  machine().run_grid(grid, block, shared_bytes, body);
}

void wait_for_block(const std::source_location& where) {
  machine().wait(State::kAtBarrier, "__syncthreads", where, nullptr, nullptr);
}

void wait_for_warp(const char* name, const std::source_location& where, void* slot, WarpWork work) {
  machine().wait(State::kAtWarp, name, where, slot, work);
}

void check_full(unsigned mask, const std::source_location& where) {
  if (mask != ~0u) machine().fail(where, "warp function: expected the mask of all 32 lanes");
}

char* dynamic_shared() { return machine().shared(); }

void copy_async_16(void* to, const void* from, int bytes, std::source_location where) {
  machine().copy(to, from, bytes, where);
}

void copy_async_commit() { machine().commit(); }

void wait_for_copies(int groups_left) { machine().wait_for_copies(groups_left); }

void check_shared(const void* pointer, std::size_t bytes, const char* name,
                  const std::source_location& where) {
  machine().check_shared(pointer, bytes, name, where);
}

}  // namespace blockscope::emulated
