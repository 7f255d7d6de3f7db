// Memory with an end after which no byte can be read or written, because the next page is missing.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace blockscope::testing {

template <class T>
class AtTheEdge {
 public:
  explicit AtTheEdge(int64_t count) : count_(static_cast<size_t>(count)) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    bytes_ = (count_ * sizeof(T) + page - 1) / page * page + page;
    memory_ = static_cast<char*>(
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (memory_ == MAP_FAILED || mprotect(memory_ + bytes_ - page, page, PROT_NONE) != 0) {
      throw std::runtime_error("no memory");
    }
    data_ = reinterpret_cast<T*>(memory_ + bytes_ - page) - count_;
  }
  AtTheEdge(const AtTheEdge&) = delete;
  AtTheEdge& operator=(const AtTheEdge&) = delete;
  ~AtTheEdge() { munmap(memory_, bytes_); }

  size_t size() const { return count_; }
  T& operator[](size_t i) { return data_[i]; }
  T* data() { return data_; }
  const T* data() const { return data_; }

 private:
  size_t count_, bytes_ = 0;
  char* memory_ = nullptr;
  T* data_ = nullptr;
};

}  // namespace blockscope::testing
