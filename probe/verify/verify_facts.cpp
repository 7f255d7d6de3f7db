#include "probe/verify/verify_facts.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "kernels/ops.h"

namespace blockscope {
namespace {

std::string dtype_name(at::ScalarType dtype) {
  if (dtype == at::kHalf) return "float16";
  return dtype == at::kBFloat16 ? "bfloat16" : "float32";
}

}  // namespace

VerifyFacts facts_of(const std::string& prompts_file, const LoadedModel& model,
                     const std::vector<RunPrompt>& prompts) {
  VerifyFacts facts;
  facts.model = model.text();
  facts.digest = model.digest;
  facts.dtype = dtype_name(model.dtype);
  facts.prompts = prompts_file;
  facts.instruction_set = instruction_set();
  std::set<std::string> metrics;
  facts.shortest_prompt = static_cast<int64_t>(prompts.front().request.prompt.size());
  for (const RunPrompt& prompt : prompts) {
    const auto length = static_cast<int64_t>(prompt.request.prompt.size());
    facts.shortest_prompt = std::min(facts.shortest_prompt, length);
    facts.longest_prompt = std::max(facts.longest_prompt, length);
    if (prompt.metric.has_value()) metrics.emplace(metric_name(*prompt.metric));
  }
  facts.metric = metrics.size() == 1 ? *metrics.begin() : "score";
  facts.threads = at::get_num_threads();
  facts.head_dim = model.config.head_dim;
  facts.element_bytes = static_cast<int64_t>(at::elementSize(model.dtype));
  return facts;
}

std::string sampling_text(const SamplingOptions& sampling) {
  if (sampling.temperature == 0.0) return "greedy";
  return fmt::format("temperature {:g}", sampling.temperature);
}

}  // namespace blockscope
