// Any bytes as a safetensors file: either a CheckpointError, or a header with tensors that are all
// inside the file. Reading every byte of every tensor lets AddressSanitizer check the second half.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "decode_record/base/error.h"
#include "probe/checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    const auto header = blockscope::parse_safetensors_header(bytes, size, "fuzz.safetensors");
    volatile unsigned sum = 0;
    for (const auto& tensor : header.tensors) {
      if (header.data_begin + tensor.begin + tensor.size > size) std::abort();
      for (std::uint64_t i = 0; i < tensor.size; ++i) {
        sum = sum + data[header.data_begin + tensor.begin + i];
      }
    }
  } catch (const blockscope::CheckpointError&) {
  }
  return 0;
}
