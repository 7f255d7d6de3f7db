// Decoding: prefill, then block by block at most T denoising steps and a commit pass
// (SDAR `generate.py:block_diffusion_generate`), which --cache blockd does beside the next block's
// first step, for a batch of sequences of different length and speed; or one token at a time for an
// autoregressive model; or sub-block by sub-block with a token shift (Fast-dLLM v2, sub_blocks.h).
// Blocks are absolute: block i covers positions [i * B, (i + 1) * B) counted from the prompt's
// first token; prompt tokens left over behind the last whole block sit unmasked in the first
// decoded block. Canvases of bidirectional models: canvas_decoder.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "decode_record/schema/trace_meta.h"
#include "probe/caches/cache_table.h"
#include "probe/decode/committed_prefix.h"
#include "probe/decode/decode_observer.h"
#include "probe/decode/kv_cache.h"
#include "probe/decode/sampling.h"
#include "probe/model/block_diffusion_model.h"
#include "probe/policies/attention_policy.h"
#include "probe/strategies/unmasking.h"

namespace blockscope {

struct DecodeOptions {
  UnmaskingOptions unmasking;  // block_length is the run's B
  SamplingOptions sampling;
  int64_t mask_token_id = -1;  // -1: autoregressive decoding, block_length must be 1
  bool bidirectional = false;  // blocks count from the prompt's end, and see what is behind them
  bool drafted = false;        // blocks are rounds of a DFlash draft, each behind what was accepted
  CacheOptions cache;
  std::vector<int64_t> stop_ids;  // looked for after each block, in everything after the prompt
  bool shadow = false;
  bool graphs = true;            // on a GPU: steps as CUDA graphs where they can be (pass_graphs.h)
  int64_t prefill_chunk = 512;   // positions per prefill pass, rounded down to whole blocks
  int64_t sub_block_length = 0;  // Fast-dLLM v2 (sub_blocks.h): a divisor of B; 0: no token shift

  bool autoregressive() const { return mask_token_id < 0; }
  bool sub_blocks() const { return sub_block_length > 0; }
  bool block_cache() const { return cache_entry(cache).keeps_sub_blocks; }
  bool fuses_commits() const { return cache_entry(cache).fuses_commits; }
  int64_t block_length() const { return unmasking.block_length; }
};

/// One recorded denoising step, for replay.
struct ReplayStep {
  int64_t block = 0;
  int64_t step = 0;                // from 1; 0: what the block began with (sub-blocks)
  std::vector<int64_t> positions;  // absolute
  std::vector<int64_t> tokens;     // the mask token: the position's token was taken back
  std::vector<float> confidence;
};

struct DecodeRequest {
  int64_t sequence = 0;         // index in the run
  std::vector<int64_t> prompt;  // token ids, at least one
  int64_t gen_length = 0;
  uint64_t prompt_hash = 0;                       // names the random stream
  bool replayed = false;                          // take `replay` instead of own choices
  std::vector<ReplayStep> replay;                 // in order
  std::shared_ptr<const CommittedPrefix> prefix;  // of the prompt's whole blocks; null: computed
};

struct DecodeOutcome {
  int64_t sequence = 0;
  std::vector<int64_t> generated;  // every position after the prompt; masks where none was decided
  FinishReason reason = FinishReason::unfinished;
  int64_t denoising_steps = 0;
  int64_t masks_left = 0;  // masks committed because T steps did not resolve them
};

/// Absolute position of a block's first token, and the block that decoding begins with.
int64_t block_start(int64_t prompt_length, int64_t block, const DecodeOptions& options);
int64_t first_block(int64_t prompt_length, const DecodeOptions& options);

/// Positions after the prompt that a run fills: up to the end of the last block, so it can exceed
/// gen_length (autoregressive and bidirectional: gen_length). With sub-blocks: gen_length / B
/// blocks, the one that the prompt ends in counted, and the token behind them, as Fast-dLLM v2 has
/// it.
int64_t generated_positions(int64_t prompt_length, int64_t gen_length,
                            const DecodeOptions& options);

/// The gen_length of a run that filled `positions` positions behind the prompt: what a replay of
/// it asks for. With sub-blocks the two differ.
int64_t gen_length_of(int64_t prompt_length, int64_t positions, const DecodeOptions& options);

/// KV positions a sequence needs (the token behind the last sub-block is never an input).
int64_t cache_positions(int64_t prompt_length, int64_t gen_length, const DecodeOptions& options);

/// KV positions of the longest of a batch's requests: the length its rotary embeddings are scaled
/// for and the capacity of its KV cache. No other place decides either.
int64_t longest_sequence(const std::vector<DecodeRequest>& requests, const DecodeOptions& options);
KvCacheShape cache_shape(const ModelConfig& config, const std::vector<DecodeRequest>& requests,
                         const DecodeOptions& options);

/// Throws UsageError / PromptError when options or a request make no sense for this model.
void check_decode_options(const DecodeOptions& options, const ModelConfig& config);
void check_request(const DecodeRequest& request, const DecodeOptions& options,
                   const ModelConfig& config);

struct DecodeCallbacks {
  DecodeObserver* observer = nullptr;                     // may be null
  std::function<bool()> interrupted;                      // asked after every pass; may be empty
  std::function<void(const DecodeOutcome&)> on_finished;  // as soon as a sequence ends
};

/// Decodes the requests as one batch (bidirectional models: one after another); `next_pass` counts
/// the run's forward passes. Returns the outcomes in request order; a sequence cut by `interrupted`
/// has reason `interrupted`. Under `dynamic` RoPE scaling the frequencies are those of
/// longest_sequence(requests) from the first pass on, so that every key of the cache was turned by
/// the same ones.
std::vector<DecodeOutcome> decode_batch(const BlockDiffusionModel& model, AttentionPolicy& policy,
                                        const DecodeOptions& options,
                                        const std::vector<DecodeRequest>& requests,
                                        int64_t& next_pass, const DecodeCallbacks& callbacks = {});

/// Sequences end in any order: their outcomes, one for each request, in the order of the requests.
std::vector<DecodeOutcome> in_request_order(std::vector<DecodeOutcome> ended,
                                            const std::vector<DecodeRequest>& requests);

/// The prefix that decoding this request starts from. Empty layers when `interrupted` cut it short.
CommittedPrefix prefill_prompt(const BlockDiffusionModel& model, const DecodeOptions& options,
                               const DecodeRequest& request,
                               const std::function<bool()>& interrupted = {});

}  // namespace blockscope
