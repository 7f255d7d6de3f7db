#include "probe/decode/noise_canvas_decoder.h"

#include <ATen/ATen.h>

#include <utility>

#include "probe/decode/decode_seams.h"
#include "probe/decode/kv_cache.h"
#include "probe/decode/sequence_state.h"
#include "probe/decode/slot_loop.h"
#include "probe/decode/step_decision.h"
#include "probe/model/stopwatch.h"
#include "probe/strategies/canvas.h"

namespace blockscope {
namespace {

class NoiseCanvasLoop final : public SlotLoop<SequenceState> {
 public:
  NoiseCanvasLoop(const BlockDiffusionModel& model, AttentionPolicy& policy,
                  const DecodeOptions& options, const DecodeRequest& request, int64_t& next_pass,
                  const DecodeCallbacks& callbacks)
      : SlotLoop(next_pass, callbacks),
        model_(model.for_longest_sequence(longest_sequence({request}, options))),
        policy_(policy),
        options_(options),
        block_length_(options.block_length()),
        cache_(cache_shape(model.config(), {request}, options), model.dtype(), model.device()),
        seams_(options, policy, cache_, watcher_) {
    active_.push_back(initial_state(request, options));
  }

 private:
  SequenceState& state() { return active_.front(); }

  void leave(int64_t slot) override {
    cache_.remove(slot);
    policy_.remove(slot);
  }

  void prefill(int64_t /*slot*/) override {
    const int64_t total = state().prompt_length;
    prefill_chunks(0, total, options_.prefill_chunk,
                   [&](PassContext& context, PassResult& result, const at::Tensor& ids,
                       const at::Tensor& positions) {
                     encode(context, ids, positions, result);
                     if (result.start + result.length < total) return;
                     result.decisions.emplace_back().noise =
                         begin_canvas(state(), options_, model_.config().vocab_size);
                   });
  }

  /// Stores the keys of these tokens.
  void encode(const PassContext& context, const at::Tensor& ids, const at::Tensor& positions,
              PassResult& result) {
    seams_.begin_prefill(context, 0, ids.size(1), /*reads_last=*/false);
    model_.forward(ids, positions, seams_);
    seams_.end_pass();
    result.attention_ns = seams_.attention_ns();
  }

  void step() override {
    const SequencePass pass = plan_pass(state(), options_, cache_.length(0));
    if (pass.kind == PassKind::commit) return commit(pass);
    const PassContext context{next_pass_++, {pass}};
    PassResult result = result_of(context);
    {
      const UnwatchedStopwatch watch(result.pass_ns, watcher_);
      seams_.begin_blocks(context, {0, block_length_});
      const at::Tensor hidden =
          model_.forward_embedded(model_.embed_canvas(ids(pass), before_), positions(pass), seams_);
      seams_.end_pass();
      decide(context, model_.logits(hidden), result);
    }
    result.attention_ns = seams_.attention_ns();
    result.rows_read = {policy_.rows_read(0, block_length_)};
    take_reads(state(), result.rows_read.front());
    advance(state(), pass, result.decisions.front(), options_);
    report(result);
  }

  void decide(const PassContext& context, const at::Tensor& logits, PassResult& result) {
    const SequencePass& pass = context.sequences.front();
    std::vector<StepInput> inputs{step_input(state(), pass, options_)};
    show_logits(watcher_, context, {0}, inputs, logits);
    const Stopwatch watch(result.deciding_ns);
    DecodeOptions now = options_;
    now.sampling.temperature = canvas_temperature(options_.unmasking, pass.step);
    result.decisions = decide_tokens(now, logits, inputs);
    // What the official loop hands on: the divided logits, in the embedding's type.
    before_ = (logits / now.sampling.temperature).to(model_.dtype());
  }

  /// Ends a canvas. Its keys are stored only if another canvas follows.
  void commit(const SequencePass& pass) {
    before_ = at::Tensor();
    const at::Tensor tokens = ids(pass);
    advance(state(), pass, {}, options_);
    if (state().outcome.reason != FinishReason::unfinished) return;
    const PassContext context{next_pass_++, {pass}};
    PassResult result = result_of(context);
    {
      const UnwatchedStopwatch watch(result.pass_ns, watcher_);
      encode(context, tokens, positions(pass), result);
    }
    result.rows_read = {block_length_};
    result.decisions.emplace_back().noise =
        begin_canvas(state(), options_, model_.config().vocab_size);
    report(result);
  }

  PassResult result_of(const PassContext& context) const {
    return {context, block_length_, context.sequences.front().block_start,
            static_cast<double>(block_length_)};
  }

  at::Tensor ids(const SequencePass& pass) {
    const auto begin = state().tokens.begin() + pass.block_start;
    return at::tensor(std::vector<int64_t>(begin, begin + block_length_), at::kLong).unsqueeze(0);
  }

  at::Tensor positions(const SequencePass& pass) const {
    return at::arange(pass.block_start, pass.block_start + block_length_, at::kLong).unsqueeze(0);
  }

  const BlockDiffusionModel model_;
  AttentionPolicy& policy_;
  const DecodeOptions& options_;
  const int64_t block_length_;
  KvCache cache_;
  DecodeSeams seams_;
  at::Tensor before_;  // [1, B, V] logits of the canvas's previous step over its temperature
};

}  // namespace

std::vector<DecodeOutcome> decode_noise_canvas(const BlockDiffusionModel& model,
                                               AttentionPolicy& policy,
                                               const DecodeOptions& options,
                                               const DecodeRequest& request, int64_t& next_pass,
                                               const DecodeCallbacks& callbacks) {
  return NoiseCanvasLoop(model, policy, options, request, next_pass, callbacks).run();
}

}  // namespace blockscope
