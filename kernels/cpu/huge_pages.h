// Memory that is read from start to end, on huge pages if the system has them. They need fewer page
// walks, and prefetchers, which stop at the end of a page, stop less often.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>

namespace blockscope {

/// At least `bytes` of uninitialised memory, in whole huge pages. Throws std::bad_alloc if memory
/// is short.
class HugePages {
 public:
  explicit HugePages(std::size_t bytes);
  char* data() const { return data_.get(); }
  std::size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(char* p) const;
  };
  std::size_t size_;
  std::unique_ptr<char, Free> data_;
};

/// A contiguous tensor on such memory, not initialised.
at::Tensor empty_on_huge_pages(at::IntArrayRef sizes, at::ScalarType dtype);

}  // namespace blockscope
