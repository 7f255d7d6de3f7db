// Any bytes as a prompt file: either a PromptError, or prompts whose values are valid. The bytes
// are scored against themselves, too: metrics take any text.
#include <cstdint>
#include <cstdlib>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "decode_record/base/error.h"
#include "probe/text/prompts.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  try {
    std::istringstream stream(input);
    const auto set = blockscope::read_prompts(stream, "fuzz");
    std::set<std::string> ids;
    for (const auto& prompt : set.prompts) {
      if (prompt.id.empty() || prompt.line == 0 || !ids.insert(prompt.id).second) std::abort();
      if (prompt.gen_length && *prompt.gen_length <= 0) std::abort();
    }
  } catch (const blockscope::PromptError&) {
  }
  const std::string half = input.substr(0, size / 2);
  const std::vector<std::string> references = {input};
  for (const auto metric :
       {blockscope::Metric::kExactMatch, blockscope::Metric::kContains, blockscope::Metric::kF1,
        blockscope::Metric::kRougeL, blockscope::Metric::kEditSimilarity}) {
    const double value = blockscope::score(metric, half, references);
    if (!(value >= 0.0 && value <= 1.0)) std::abort();
  }
  return 0;
}
