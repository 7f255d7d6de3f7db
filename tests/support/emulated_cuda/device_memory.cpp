#include "tests/support/emulated_cuda/device_memory.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include "tests/support/emulated_cuda.h"
#include "tests/support/emulated_cuda/streams.h"

namespace blockscope::emulated_cuda {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kReserved = size_t{12} << 30;  // addresses, not memory
constexpr size_t kAlignment =
    64;  // as at::empty on the CPU, so that its kernels take the same paths

size_t round_up(size_t value, size_t to) { return (value + to - 1) / to * to; }

struct Arena {
  std::byte* device = nullptr;
  std::byte* host = nullptr;
  size_t used = 0;
  size_t allocated = 0;
  size_t limit = size_t{8} << 30;
  int empty_file = -1;
  int accesses = 0;
  std::multimap<size_t, std::byte*> free;  // by capacity; the first byte's device address

  Arena() {
    const int file = memfd_create("emulated_cuda", 0);
    empty_file = memfd_create("emulated_cuda_guard", 0);
    TORCH_CHECK(file >= 0 && empty_file >= 0 && ftruncate(file, kReserved) == 0,
                "emulated CUDA: no memory file: ", std::strerror(errno));
    host = map(nullptr, kReserved, PROT_READ | PROT_WRITE, file, 0);
    device = map(nullptr, kReserved, PROT_NONE, file, 0);
  }

  static std::byte* map(std::byte* at, size_t bytes, int protection, int file, int flags) {
    void* made = mmap(at, bytes, protection, MAP_SHARED | MAP_NORESERVE | flags, file, 0);
    TORCH_CHECK(made != MAP_FAILED, "emulated CUDA: mmap: ", std::strerror(errno));
    return static_cast<std::byte*>(made);
  }

  /// After the end of its file a page is dead, whatever its protection.
  void make_guard(size_t offset) const {
    map(device + offset, kPage, PROT_NONE, empty_file, MAP_FIXED);
    map(host + offset, kPage, PROT_NONE, empty_file, MAP_FIXED);
  }

  std::byte* take(size_t capacity) {
    if (const auto found = free.find(capacity); found != free.end()) {
      std::byte* begin = found->second;
      free.erase(found);
      return begin;
    }
    TORCH_CHECK(used + capacity + kPage <= kReserved, "emulated CUDA: out of addresses");
    std::byte* begin = device + used;
    make_guard(used + capacity);
    std::memset(host + used, kPoison, capacity);
    used += capacity + kPage;
    return begin;
  }

  void protect(int protection) const {
    if (used == 0) return;
    TORCH_CHECK(mprotect(device, used, protection) == 0,
                "emulated CUDA: mprotect: ", std::strerror(errno));
  }
};

/// Never destroyed: tensors may outlive main.
Arena& arena() {
  static auto* const made = new Arena;
  return *made;
}

std::atomic<const std::byte*> first_device_byte{nullptr};

/// Says what happened and dies of it.
void report_fault(int, siginfo_t* info, void*) {
  const auto* at = static_cast<const std::byte*>(info->si_addr);
  const std::byte* first = first_device_byte.load();
  if (first != nullptr && at >= first && at < first + kReserved) {
    constexpr char kText[] =
        "emulated CUDA: host code touched device memory, or a kernel the bytes behind a tensor\n";
    (void)!write(STDERR_FILENO, kText, sizeof kText - 1);
  }
  signal(SIGSEGV, SIG_DFL);
  signal(SIGBUS, SIG_DFL);
}

void install_fault_report() {
  for (const int number : {SIGSEGV, SIGBUS}) {
    struct sigaction present {};
    if (sigaction(number, nullptr, &present) != 0 || present.sa_handler != SIG_DFL) continue;
    struct sigaction ours {};
    ours.sa_sigaction = report_fault;
    ours.sa_flags = SA_SIGINFO;
    sigaction(number, &ours, nullptr);
  }
}

size_t capacity_of(size_t bytes) {
  const size_t pages = round_up(std::max<size_t>(bytes, 1), kPage);
  // Few sizes for large blocks, so that they can be used again; the block's end stays at its guard.
  const size_t step = pages <= (size_t{1} << 20) ? kPage : size_t{1} << 18;
  return round_up(pages, step);
}

void free_block(void* context) {
  const std::scoped_lock lock(device_mutex());
  std::unique_ptr<std::shared_ptr<Block>> owner(static_cast<std::shared_ptr<Block>*>(context));
  free_in_stream_order(std::move(*owner));
}

class DeviceMemory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(c10::kCUDA, 0);
    if (bytes == 0) return {nullptr, device};
    const std::scoped_lock lock(device_mutex());
    Arena& memory = arena();
    const size_t capacity = capacity_of(bytes);
    if (memory.allocated + capacity > memory.limit && captured_graph() == nullptr)
      run_all();  // frees what is only waiting for its turn
    TORCH_CHECK_WITH(OutOfMemoryError, memory.allocated + capacity <= memory.limit,
                     "CUDA out of memory. Tried to allocate ", bytes,
                     " bytes. GPU 0 has a total capacity of ", memory.limit, " bytes of which ",
                     memory.limit - memory.allocated, " bytes is free.");
    auto block = std::make_shared<Block>();
    first_device_byte = memory.device;
    std::byte* begin = memory.take(capacity);
    memory.allocated += capacity;
    block->bytes = bytes;
    block->capacity = capacity;
    block->device = begin + (capacity - round_up(bytes, kAlignment));
    block->stream = current_stream_id();
    block->graph = captured_graph();
    void* const data = block->device;
    return {data, new std::shared_ptr<Block>(std::move(block)), &free_block, device};
  }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    const std::scoped_lock lock(device_mutex());
    enqueue(current_stream_id(), [to = host_address(to), from = host_address(from), bytes] {
      std::memmove(to, from, bytes);
    });
  }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    record_block_stream(data, stream.id());
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override {
    const std::scoped_lock lock(device_mutex());
    return {arena().limit - arena().allocated, arena().limit};
  }
};

std::map<const std::byte*, size_t>& pinned_ranges() {
  static auto* const made = new std::map<const std::byte*, size_t>;
  return *made;
}

void free_pinned(void* data) {
  const std::scoped_lock lock(device_mutex());
  pinned_ranges().erase(static_cast<std::byte*>(data));
  std::free(data);
}

class PinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    refuse_in_capture("pinned memory");
    const std::scoped_lock lock(device_mutex());
    const size_t size = round_up(std::max<size_t>(bytes, 1), kAlignment);
    void* const data = std::aligned_alloc(kAlignment, size);
    TORCH_CHECK(data != nullptr, "emulated CUDA: no pinned memory");
    std::memset(data, kPoison, size);
    pinned_ranges()[static_cast<std::byte*>(data)] = size;
    return {data, data, &free_pinned, c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memmove(to, from, bytes);
  }
};

}  // namespace

std::recursive_mutex& device_mutex() {
  static auto* const made = new std::recursive_mutex;
  return *made;
}

Block::~Block() {
  if (graph != nullptr) poison(*this);
  Arena& memory = arena();
  memory.allocated -= capacity;
  memory.free.emplace(capacity, device + round_up(bytes, kAlignment) - capacity);
}

std::byte* host_address(const void* device) {
  if (device == nullptr) return nullptr;
  TORCH_CHECK(is_device_pointer(device), "emulated CUDA: not a device pointer");
  return arena().host + (static_cast<const std::byte*>(device) - arena().device);
}

bool is_device_pointer(const void* pointer) {
  const auto* at = static_cast<const std::byte*>(pointer);
  return at >= arena().device && at < arena().device + kReserved;
}

std::shared_ptr<Block> block_of(const c10::Storage& storage) {
  const c10::DataPtr& data = storage.data_ptr();
  if (data.get() == nullptr) return nullptr;
  TORCH_CHECK(data.get_deleter() == &free_block,
              "emulated CUDA: a storage that is not the allocator's");
  return *static_cast<std::shared_ptr<Block>*>(data.get_context());
}

void record_block_stream(const c10::DataPtr& data, int64_t stream) {
  if (data.get() == nullptr || data.get_deleter() != &free_block) return;
  const std::scoped_lock lock(device_mutex());
  (*static_cast<std::shared_ptr<Block>*>(data.get_context()))->users.push_back(stream);
}

void poison(const Block& block) {
  std::byte* const end = host_address(block.device) + round_up(block.bytes, kAlignment);
  std::memset(end - block.capacity, kPoison, block.capacity);
}

c10::Allocator* device_allocator() {
  static auto* const made = new DeviceMemory;
  return made;
}

c10::Allocator* pinned_allocator() {
  static auto* const made = new PinnedMemory;
  return made;
}

bool is_pinned(const void* pointer) {
  const std::scoped_lock lock(device_mutex());
  const auto* at = static_cast<const std::byte*>(pointer);
  auto behind = pinned_ranges().upper_bound(at);
  if (behind == pinned_ranges().begin()) return false;
  const auto& [begin, size] = *std::prev(behind);
  return at < begin + size;
}

DeviceAccess::DeviceAccess() {
  const std::scoped_lock lock(device_mutex());
  if (arena().accesses++ == 0) arena().protect(PROT_READ | PROT_WRITE);
}

DeviceAccess::~DeviceAccess() {
  const std::scoped_lock lock(device_mutex());
  if (--arena().accesses == 0) arena().protect(PROT_NONE);
}

void set_memory_limit(size_t bytes) {
  const std::scoped_lock lock(device_mutex());
  arena().limit = bytes;
}

size_t allocated_bytes() {
  const std::scoped_lock lock(device_mutex());
  return arena().allocated;
}

namespace {
[[maybe_unused]] const bool ready = [] {
  c10::SetAllocator(c10::kCUDA, device_allocator());
  install_fault_report();
  return true;
}();
}  // namespace

}  // namespace blockscope::emulated_cuda
