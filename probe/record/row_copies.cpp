#include "probe/record/row_copies.h"

#include <ATen/ops/empty.h>

#include <memory>
#include <utility>

#include "kernels/cpu/cpu_support.h"
#include "kernels/cpu/head_tasks.h"
#include "kernels/simd/row_kernels.h"

namespace blockscope {

void RowCopies::add(Field field, const at::Tensor& x, int64_t row,
                    const std::vector<int64_t>& heads) {
  copies_.push_back(
      {field, x.stride(-1) == 1 ? x : x.contiguous(), row, heads,
       at::empty({std::ssize(heads), x.size(2), x.size(3)}, at::TensorOptions().dtype(type_))});
}

void RowCopies::copy_head(const Copy& copy, int64_t head) const {
  const RawView from(copy.from);
  const int64_t block = copy.to.size(1);
  const int64_t dim = copy.to.size(2);
  const Element narrow = element_of(copy.to);
  const int64_t source = copy.heads[static_cast<size_t>(head)];
  auto* to =
      static_cast<char*>(copy.to.mutable_data_ptr()) + head * block * dim * element_bytes(narrow);
  const bool dense = copy.from.stride(2) == dim;
  const int64_t runs = dense ? 1 : block;
  const int64_t count = dense ? block * dim : dim;
  for (int64_t i = 0; i < runs; ++i) {
    best_row_kernels().convert(element_of(copy.from), from.at(copy.row, source, i), count, narrow,
                               to + i * count * element_bytes(narrow));
  }
}

void RowCopies::run(std::vector<ArraySlice>& slices) {
  std::vector<std::pair<const Copy*, int64_t>> heads;
  int64_t elements = 0;
  for (const Copy& copy : copies_) {
    for (int64_t head = 0; head < std::ssize(copy.heads); ++head) heads.push_back({&copy, head});
    elements += copy.to.numel();
  }
  if (heads.empty()) return;
  for_each_head(std::ssize(heads), elements / std::ssize(heads), [&](int64_t i) {
    copy_head(*heads[static_cast<size_t>(i)].first, heads[static_cast<size_t>(i)].second);
  });
  for (Copy& copy : copies_) {
    auto owner = std::make_shared<at::Tensor>(std::move(copy.to));
    const void* data = owner->const_data_ptr();
    const auto size = static_cast<size_t>(owner->nbytes());
    slices.push_back({copy.field, layer_index_, Buffer{std::move(owner), data, size}});
  }
  copies_.clear();
}

}  // namespace blockscope
