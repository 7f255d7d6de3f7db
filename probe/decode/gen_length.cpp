#include "probe/decode/gen_length.h"

#include <fmt/format.h>

#include "decode_record/base/error.h"

namespace blockscope {

std::string gen_length_refusal(int64_t gen_length, const DecodeOptions& options) {
  const int64_t block_length = options.block_length();
  if (gen_length < 1) {
    return fmt::format("expected at least 1, got {}. HINT: {}", gen_length, block_length);
  }
  if (options.bidirectional && gen_length % block_length != 0) {
    return fmt::format(
        "expected a multiple of the block length {}, got {}: a bidirectional model sees all of its "
        "masks. HINT: use {}, or another block length",
        block_length, gen_length, (gen_length / block_length + 1) * block_length);
  }
  if (options.sub_blocks() && gen_length < block_length) {
    return fmt::format(
        "expected at least the block length {}, got {}: this family generates whole blocks only. "
        "HINT: use {}, or a smaller block length",
        block_length, gen_length, block_length);
  }
  return "";
}

void check_gen_length(int64_t gen_length, const DecodeOptions& options) {
  const std::string refusal = gen_length_refusal(gen_length, options);
  if (!refusal.empty()) throw UsageError("gen length: " + refusal);
}

}  // namespace blockscope
