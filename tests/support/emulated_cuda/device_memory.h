// The device's memory. Every page is mapped twice: protected at device pointers, and unprotected at
// host addresses that only this library uses. A block ends where a page ends. The page after the
// block is dead in both mappings, under DeviceAccess too. New blocks hold NaN (0xff).
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace blockscope::emulated_cuda {

constexpr int kPoison = 0xff;

/// Guards all state of the device, its queues included. Recursive: operators of the device run
/// inside.
std::recursive_mutex& device_mutex();

/// A range of device memory. It can be used again when no tensor holds it.
struct Block {
  std::byte* device = nullptr;
  size_t bytes = 0;             // as requested
  size_t capacity = 0;          // of the pages
  int64_t stream = 0;           // that it was allocated on
  std::vector<int64_t> users;   // other streams it was recorded for
  const void* graph = nullptr;  // in whose capture it was taken (captured_graph)
  ~Block();
};

/// The host address of a device pointer.
std::byte* host_address(const void* device);
bool is_device_pointer(const void* pointer);

std::shared_ptr<Block> block_of(const c10::Storage& storage);  // null: a storage without memory
void record_block_stream(const c10::DataPtr& data, int64_t stream);

void poison(const Block& block);

c10::Allocator* device_allocator();
c10::Allocator* pinned_allocator();
bool is_pinned(const void* pointer);

}  // namespace blockscope::emulated_cuda
