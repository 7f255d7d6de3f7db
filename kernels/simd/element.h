// The number type of a tensor, without a torch header.
#pragma once

#include <cstdint>

namespace blockscope {

enum class Element : uint8_t { kFloat32, kFloat16, kBFloat16 };

// `static`, so that files compiled for one instruction set leave no copy for the linker.
static inline constexpr int64_t element_bytes(Element element) {
  return element == Element::kFloat32 ? 4 : 2;
}

}  // namespace blockscope
