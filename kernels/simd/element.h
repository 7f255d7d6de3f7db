// What a tensor's numbers are, without a torch header.
#pragma once

#include <cstdint>

namespace blockscope {

enum class Element : uint8_t { kFloat32, kFloat16, kBFloat16 };

// `static`: files compiled for one instruction set must leave no copy that the linker could take.
static inline constexpr int64_t element_bytes(Element element) {
  return element == Element::kFloat32 ? 4 : 2;
}

}  // namespace blockscope
