// Decoding of a batch of sequences of different length and speed. After the prefill, each block
// takes at most T denoising steps and a commit pass (SDAR `generate.py:block_diffusion_generate`).
// With --cache blockd, the pass of the next block's first step also does the commit. Autoregressive
// models decode one token at a time. Fast-dLLM v2 fills sub-blocks with a token shift
// (sub_blocks.h). For bidirectional models see canvas_decoder.h.
//
// Blocks are absolute: block i covers positions [i * B, (i + 1) * B), counted from the prompt's
// first token. Prompt tokens after the last whole block are the unmasked beginning of the first
// decoded block.
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
  UnmaskingOptions unmasking;  // its block_length is the run's B
  SamplingOptions sampling;
  int64_t mask_token_id = -1;    // -1: none. Then canvas, or autoregressive, block_length must be 1
  int64_t delete_token_id = -1;  // joint_threshold_indel; -1: the checkpoint has none
  int64_t split_token_id = -1;
  bool bidirectional = false;  // blocks count from the prompt's end, and see later positions
  bool drafted = false;        // blocks are rounds of a DFlash draft, after the accepted tokens
  bool canvas = false;         // blocks count from the prompt's end and begin as random tokens
  CacheOptions cache;
  std::vector<int64_t> stop_ids;  // searched after each block, in everything after the prompt
  bool shadow = false;
  bool graphs = true;            // on a GPU: run steps as CUDA graphs if possible (pass_graphs.h)
  int64_t prefill_chunk = 512;   // positions per prefill pass, rounded down to whole blocks
  int64_t sub_block_length = 0;  // Fast-dLLM v2 (sub_blocks.h): a divisor of B; 0: no token shift

  bool autoregressive() const { return mask_token_id < 0 && !canvas; }
  bool blocks_after_prompt() const { return bidirectional || drafted || canvas; }
  bool sub_blocks() const { return sub_block_length > 0; }
  bool block_cache() const { return cache_entry(cache).keeps_sub_blocks; }
  bool fuses_commits() const { return cache_entry(cache).fuses_commits; }
  /// Blocks are committed in passes of their own.
  bool commits_apart() const { return !bidirectional && !autoregressive() && !fuses_commits(); }
  int64_t block_length() const { return unmasking.block_length; }
};

/// One recorded denoising step, for replay.
struct ReplayStep {
  int64_t block = 0;
  int64_t step = 0;                // from 1; 0: the token that the block began with (sub-blocks)
  std::vector<int64_t> positions;  // absolute
  std::vector<int64_t> tokens;     // the mask token where a token was taken back
  std::vector<float> confidence;
  std::vector<int64_t> inserted = {};  // absolute positions before which a mask is then inserted
  std::vector<int64_t> deleted = {};   // and those that then go, counted after the insertions
  int64_t kept_masks = 0;              // positions decided as [MASK]; which ones is not known
  // Random tokens put at positions of a canvas; step 0: those that it begins with.
  std::vector<int64_t> noise_positions{}, noise_tokens{};
};

struct DecodeRequest {
  int64_t sequence = 0;         // index in the run
  std::vector<int64_t> prompt;  // token ids, at least one
  int64_t gen_length = 0;
  PromptRegions regions;                          // of the prompt
  uint64_t prompt_hash = 0;                       // identifies the random stream
  bool replayed = false;                          // use the tokens of `replay`
  std::vector<ReplayStep> replay;                 // in order
  bool replay_ends_within = false;                // its last block had no commit pass
  std::shared_ptr<const CommittedPrefix> prefix;  // the prompt's whole blocks; null: prefill them
};

struct DecodeOutcome {
  int64_t sequence = 0;
  std::vector<int64_t> generated;  // every position after the prompt; undecided ones are masks
  FinishReason reason = FinishReason::unfinished;
  int64_t denoising_steps = 0;
  int64_t masks_left = 0;  // masks that were still undecided when their block was committed
};

/// The absolute position of a block's first token, and the first block that is decoded.
int64_t block_start(int64_t prompt_length, int64_t block, const DecodeOptions& options);
int64_t first_block(int64_t prompt_length, const DecodeOptions& options);

/// The number of positions after the prompt that a run fills. It can exceed gen_length, as the last
/// block is filled to its end; it is gen_length for autoregressive and bidirectional models. With
/// sub-blocks, as in Fast-dLLM v2, the run fills gen_length / B blocks, including the one in which
/// the prompt ends, and one token after them.
int64_t generated_positions(int64_t prompt_length, int64_t gen_length,
                            const DecodeOptions& options);

/// The gen_length that a replay needs to fill `positions` positions after the prompt. With
/// sub-blocks the two numbers differ.
int64_t gen_length_of(int64_t prompt_length, int64_t positions, const DecodeOptions& options);

/// The KV positions that a sequence needs. The token after the last sub-block is never an input.
int64_t cache_positions(int64_t prompt_length, int64_t gen_length, const DecodeOptions& options);

/// The KV positions of the longest of a batch's requests. It alone decides the length for which
/// rotary embeddings are scaled, and the capacity of the KV cache.
int64_t longest_sequence(const std::vector<DecodeRequest>& requests, const DecodeOptions& options);

/// The shape of a model's cache. `capacity`: its positions. `stored`: the most that a pass stores.
KvCacheShape cache_shape(const ModelConfig& config, int64_t slots, int64_t capacity,
                         int64_t stored);
KvCacheShape cache_shape(const ModelConfig& config, const std::vector<DecodeRequest>& requests,
                         const DecodeOptions& options);

/// Throw UsageError or PromptError if the options or a request do not fit this model.
void check_decode_options(const DecodeOptions& options, const ModelConfig& config);
void check_request(const DecodeRequest& request, const DecodeOptions& options,
                   const ModelConfig& config);

struct DecodeCallbacks {
  DecodeObserver* observer = nullptr;                     // may be null
  std::function<bool()> interrupted;                      // called after every pass; may be empty
  std::function<void(const DecodeOutcome&)> on_finished;  // called as soon as a sequence ends
};

/// Decodes the requests as one batch (bidirectional models: one after another). `next_pass` counts
/// the run's forward passes. Returns the outcomes in request order. A sequence that `interrupted`
/// cut off has reason `interrupted`. Under `dynamic` RoPE scaling, all passes use the frequencies
/// for longest_sequence(requests), so all keys of the cache are rotated alike.
std::vector<DecodeOutcome> decode_batch(const BlockDiffusionModel& model, AttentionPolicy& policy,
                                        const DecodeOptions& options,
                                        const std::vector<DecodeRequest>& requests,
                                        int64_t& next_pass, const DecodeCallbacks& callbacks = {});

/// The outcomes in the order of the requests, one for each. Sequences may end in any order.
std::vector<DecodeOutcome> in_request_order(std::vector<DecodeOutcome> ended,
                                            const std::vector<DecodeRequest>& requests);

/// The prefix from which decoding this request starts, of a model without canvases. If
/// `interrupted` cut the prefill off, its layers are empty.
CommittedPrefix prefill_prompt(const BlockDiffusionModel& model, const DecodeOptions& options,
                               const DecodeRequest& request,
                               const std::function<bool()>& interrupted = {});

}  // namespace blockscope
