// Any bytes as a calibration file: either a CalibrationError, or a file whose values are valid and
// that is written and read back as the same.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "decode_record/base/error.h"
#include "decode_record/interchange/reuse_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  try {
    const blockscope::ReuseFile file = blockscope::parse_reuse_file(input, "fuzz");
    if (file.reuse.heads.size() != file.reuse.ranges.size()) std::abort();
    if (file.reuse.ranges.first.front() != 1) std::abort();
    for (std::size_t i = 1; i < file.reuse.ranges.size(); ++i) {
      if (file.reuse.ranges.first[i] <= file.reuse.ranges.first[i - 1]) std::abort();
    }
    for (const auto& mask : file.reuse.heads) {
      if (mask.size() != static_cast<std::size_t>(file.model.layers)) std::abort();
      for (const auto& row : mask) {
        if (row.size() != static_cast<std::size_t>(file.model.heads)) std::abort();
      }
    }
    if (!file.gamma.empty() && !file.similarity.empty() &&
        file.reuse != blockscope::reuse_masks(file, file.gamma)) {
      std::abort();
    }
    const std::string text = blockscope::to_json(file);
    if (blockscope::to_json(blockscope::parse_reuse_file(text, "again")) != text) std::abort();
    const blockscope::ReuseModel other{file.model.layers, file.model.heads + 1, 0, ""};
    try {
      blockscope::parse_reuse_file(input, "fuzz", other);
      std::abort();
    } catch (const blockscope::CalibrationError&) {
    }
  } catch (const blockscope::CalibrationError&) {
  }
  return 0;
}
