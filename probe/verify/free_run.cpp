#include "probe/verify/free_run.h"

#include <utility>

namespace blockscope {

void replay_of(const SequenceRun& run, DecodeRequest& request) {
  request.replayed = true;
  request.replay = run.steps;
  request.replay_ends_within = !run.rows.empty() && !run.rows.back().commit;
}

FreeRunObserver::FreeRunObserver(const DecodeOptions& options, const LayerSizes& shape)
    : reads(shape), block_length_(options.block_length()), mask_token_id_(options.mask_token_id) {}

namespace {

void take_noise(const StepDecision& decision, ReplayStep& step) {
  for (const Noise& one : decision.noise) {
    step.noise_positions.push_back(one.position);
    step.noise_tokens.push_back(one.token);
  }
}

}  // namespace

void FreeRunObserver::on_attention(const AttentionView& view) { pass_reads_.add(view); }

void FreeRunObserver::on_pass(const PassResult& result) {
  total_ns += result.pass_ns;
  pass_reads_.move_to(reads, result.context);
  for (size_t s = 0; s < result.decisions.size(); ++s) {
    const auto& next = result.decisions[s].next;
    const SequencePass& pass = result.context.sequences[s];
    if (pass.kind != PassKind::denoise && !result.decisions[s].noise.empty()) {
      ReplayStep begin{pass.kind == PassKind::prefill ? 0 : pass.block + 1, 0, {}, {}, {}};
      take_noise(result.decisions[s], begin);
      sequences[pass.sequence].steps.push_back(std::move(begin));
    }
    if (!next) continue;
    const int64_t begin = pass.kind == PassKind::prefill ? result.start + result.length
                                                         : (pass.block + 1) * block_length_;
    sequences[pass.sequence].steps.push_back(
        {begin / block_length_, 0, {begin}, {next->token}, {next->confidence}});
    ++tokens;
  }
  if (result.context.sequences.front().kind == PassKind::prefill) return;
  attention_ns += result.attention_ns;
  ++block_passes;
  const double read = static_cast<double>(reads.total_read()) +
                      0.5 * static_cast<double>(reads.total_choice()) - read_before_;
  read_before_ += read;
  bool all_denoise = result.context.commits.empty();
  for (const FusedCommit& commit : result.context.commits) {
    const SequencePass& pass = commit.pass;
    sequences[pass.sequence].rows.push_back(
        {/*commit=*/true, pass.block, pass.step, pass.context_length, pass.changed, pass.decided,
         pass.run_step, pass.planned_steps, pass.changed_rows, pass.masked});
  }
  double context_length = 0.0;
  for (size_t s = 0; s < result.context.sequences.size(); ++s) {
    const SequencePass& pass = result.context.sequences[s];
    SequenceRun& sequence = sequences[pass.sequence];
    const bool commit = pass.kind == PassKind::commit;
    all_denoise = all_denoise && !commit;
    context_length += static_cast<double>(pass.context_length);
    sequence.rows.push_back({commit, pass.block, pass.step, pass.context_length, pass.changed,
                             pass.decided, pass.run_step, pass.planned_steps, pass.changed_rows,
                             pass.masked});
    if (commit) continue;
    const StepDecision& decision = result.decisions[s];
    ReplayStep step{pass.block, pass.step, {}, {}, {}};
    for (const int64_t p : decision.transferred) {
      const size_t at = static_cast<size_t>(p);
      step.positions.push_back(pass.block_start + p);
      step.tokens.push_back(decision.prediction.token[at]);
      step.confidence.push_back(decision.prediction.confidence[at]);
    }
    for (const Revocation& revoked : decision.revoked) {
      step.positions.push_back(pass.block_start + revoked.position);
      step.tokens.push_back(mask_token_id_);
      step.confidence.push_back(revoked.confidence);
    }
    take_noise(decision, step);
    for (const int64_t p : decision.inserted) step.inserted.push_back(pass.block_start + p);
    for (const int64_t p : decision.deleted) step.deleted.push_back(pass.block_start + p);
    step.kept_masks = decision.kept_masks;
    ++denoising_steps;
    tokens += decision.net_tokens();
    sequence.steps.push_back(std::move(step));
  }
  if (!all_denoise) return;
  const double count = static_cast<double>(result.context.sequences.size());
  const double kv_heads = static_cast<double>(reads.rows.size());  // of all layers
  steps.push_back({context_length / count, read / (kv_heads * count),
                   static_cast<double>(result.attention_ns) * 1e-6 / count});
}

}  // namespace blockscope
