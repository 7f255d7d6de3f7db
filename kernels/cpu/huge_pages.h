// Memory that is read from one end to the other, on huge pages where the system gives them: fewer
// page walks, and prefetchers that stop at the end of a page run on.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>

namespace blockscope {

/// At least `bytes` of memory, a whole number of huge pages, not initialised. std::bad_alloc where
/// there is none.
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
