#include "probe/commands/draft_comparison.h"

#include <fmt/format.h>

#include "command_line/interrupt.h"
#include "command_line/progress.h"
#include "probe/verify/draft_runs.h"

namespace blockscope {
namespace {

std::vector<int64_t> block_lengths(const DraftComparisonFlags& flags, const ModelConfig& draft) {
  if (flags.block_lengths.empty()) return {draft.block_length->value};
  for (const int64_t length : flags.block_lengths) {
    check_round_length("--block-lengths", length, draft);
  }
  return flags.block_lengths;
}

DraftFacts facts_of(const DraftComparisonFlags& flags, const DraftComparison& comparison) {
  DraftFacts facts;
  static_cast<VerifyFacts&>(facts) =
      facts_of(flags.prompts.file, comparison.target, comparison.prompts);
  const SamplingOptions& sampling = flags.decoding.sampling;
  facts.drawn = sampling.temperature > 0.0;
  facts.decoding =
      fmt::format("gen length {}, {}", flags.decoding.gen_length, sampling_text(sampling));
  if (facts.drawn) facts.decoding += fmt::format(", seed {}", sampling.seed);
  facts.batch_size = flags.decoding.batch_size;
  facts.repeats = flags.repeats;
  facts.draft = flags.draft;
  facts.draft_digest = comparison.draft.recorded.digest;
  return facts;
}

}  // namespace

DraftComparison compare_with_draft(const DraftComparisonFlags& flags,
                                   const Environment& environment) {
  DraftComparison result;
  result.target = load_model(flags_of_target(flags.model), environment);
  result.draft = load_draft(flags.draft, flags.model, result.target, environment);
  result.alone = decode_options(flags.decoding, result.target);
  check_decoding_fits(flags.command, result.alone);
  const std::vector<int64_t> lengths = block_lengths(flags, result.draft.recorded.config);
  result.tokenizer = load_tokenizer(result.target);
  result.prompts =
      load_prompts(flags.prompts, result.target, result.tokenizer ? &*result.tokenizer : nullptr,
                   flags.decoding.gen_length, result.alone);
  result.facts = facts_of(flags, result);
  InterruptGuard::check();
  Progress progress(flags.quiet);
  result.runs = run_with_and_without(
      {result.target, *result.draft.draft, result.alone, lengths, result.prompts,
       flags.decoding.batch_size, flags.repeats},
      [&](double done, const std::string& text) { progress.update(done, text); });
  progress.clear();
  return result;
}

}  // namespace blockscope
