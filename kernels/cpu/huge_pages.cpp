#include "kernels/cpu/huge_pages.h"

#include <ATen/ops/from_blob.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>

namespace blockscope {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

}  // namespace

void HugePages::Free::operator()(char* p) const { std::free(p); }

HugePages::HugePages(std::size_t bytes)
    : size_(std::max<std::size_t>((bytes + kHugePage - 1) / kHugePage, 1) * kHugePage),
      data_(static_cast<char*>(std::aligned_alloc(kHugePage, size_))) {
  if (data_ == nullptr) throw std::bad_alloc();
  madvise(data_.get(), size_, MADV_HUGEPAGE);  // only a hint; without it, pages are small
}

at::Tensor empty_on_huge_pages(at::IntArrayRef sizes, at::ScalarType dtype) {
  const auto bytes =
      static_cast<std::size_t>(c10::multiply_integers(sizes)) * c10::elementSize(dtype);
  const auto pages = std::make_shared<HugePages>(bytes);
  return at::from_blob(
      pages->data(), sizes, [pages](void*) {}, dtype);
}

}  // namespace blockscope
