#include "analysis/pass/array_view.h"

#include <bit>
#include <cassert>
#include <cstring>
#include <stdexcept>

namespace blockscope {
namespace {

std::size_t element_bytes(ViewType type) {
  switch (type) {
    case ViewType::u8:
      return 1;
    case ViewType::bf16:
      return 2;
    case ViewType::f32:
    case ViewType::i32:
      break;
  }
  return 4;
}

template <typename Element>
std::span<const Element> typed(const ArrayView& view, ViewType wanted) {
  if (!view.empty() && view.type != wanted) {
    throw std::logic_error("ArrayView: the dataset has a different element type");
  }
  return {reinterpret_cast<const Element*>(view.data), view.size};
}

}  // namespace

ArrayView ArrayView::slice(std::size_t first, std::size_t count) const {
  assert(first <= size && count <= size - first);
  return ArrayView{data + first * element_bytes(type), count, type};
}

std::span<const float> ArrayView::floats() const { return typed<float>(*this, ViewType::f32); }

std::span<const std::int32_t> ArrayView::ints() const {
  return typed<std::int32_t>(*this, ViewType::i32);
}

std::span<const std::uint8_t> ArrayView::bytes() const {
  return typed<std::uint8_t>(*this, ViewType::u8);
}

std::span<const float> to_floats(const ArrayView& view, std::vector<float>& out) {
  out.resize(view.size);
  if (view.type == ViewType::f32) {
    if (view.size != 0) std::memcpy(out.data(), view.data, view.size * sizeof(float));
    return out;
  }
  if (view.type != ViewType::bf16) {
    throw std::logic_error("to_floats: expected bfloat16 or float32 values");
  }
  const auto* words = reinterpret_cast<const std::uint16_t*>(view.data);
  for (std::size_t i = 0; i < view.size; ++i) {
    out[i] = std::bit_cast<float>(std::uint32_t{words[i]} << 16U);
  }
  return out;
}

}  // namespace blockscope
