// Any bytes as config.json and the files next to it: either an Error, or a configuration whose
// sizes are usable: the weight-name table and the RoPE frequencies can be computed from it.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "decode_record/base/error.h"
#include "probe/checkpoint/checkpoint.h"
#include "probe/checkpoint/model_config.h"
#include "probe/checkpoint/rope.h"

namespace {

// The input is split at form feeds into config.json, generation_config.json, tokenizer.json, ...
std::string take_part(std::string& rest) {
  const std::size_t end = rest.find('\f');
  std::string part = rest.substr(0, end);
  rest = end == std::string::npos ? std::string() : rest.substr(end + 1);
  return part;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string rest(reinterpret_cast<const char*>(data), size);
  blockscope::ConfigTexts texts;
  texts.config = take_part(rest);
  for (auto* part : {&texts.generation_config, &texts.tokenizer, &texts.tokenizer_config,
                     &texts.added_tokens, &texts.block_diffusion, &texts.dlm_config}) {
    if (!rest.empty()) *part = take_part(rest);
  }
  try {
    auto config = blockscope::parse_model_config(texts);
    if (blockscope::resolved_json(config).empty()) std::abort();
    for (const double frequency :
         blockscope::rope_inverse_frequencies(config.rope, config.head_dim, 4096).inv_freq) {
      if (std::isnan(frequency)) std::abort();
    }
    for (const auto& tensor : blockscope::expected_tensors(config)) {
      for (const auto extent : tensor.shape) {
        if (extent <= 0) std::abort();
      }
    }
  } catch (const blockscope::Error&) {
  }
  return 0;
}
