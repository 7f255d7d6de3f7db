// What is fixed for a whole trace before its first row: the model's shape, what is recorded, and
// the texts that say exactly what ran. All of it is written before decoding starts.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "decode_record/schema/layer_sizes.h"
#include "decode_record/schema/trace_schema.h"

namespace blockscope {

/// The most positions of a prompt, or after a prompt. No model comes near.
inline constexpr std::int64_t kLargestLength = std::int64_t{1} << 24;

/// Powers of two on each side of a block in new traces, whatever the model, so that traces can be
/// compared. The last bin also takes what is farther.
inline constexpr std::int64_t kDistanceBins = 20;
inline constexpr std::int64_t kMostDistanceBins = 24;  ///< in any trace

/// The regions of keys that every recorder knows, in their order: the first kFirstPositions of a
/// sequence, the rest of the prompt (more names if its parts are known), answer blocks before this
/// one, decided and masked positions of the block, and positions after the block.
inline constexpr std::array<std::string_view, 6> kRegionNames{"first",   "prompt", "answer",
                                                              "decided", "masks",  "after"};
inline constexpr std::size_t kMostPartNameBytes = 200;
/// Whether a part of a prompt may have this name: 1 to 200 bytes, no control character, comma, "="
/// or "+", and none of kRegionNames.
bool is_part_name(std::string_view name);
/// The first positions of a sequence, where attention sinks are (StreamingLLM, arXiv 2309.17453).
inline constexpr std::int32_t kFirstPositions = 4;

/// Earlier answer blocks that a trace tells apart: the one before the block, the one before that,
/// ...; the last one stands for all earlier ones.
inline constexpr std::int64_t kAnswerBlocks = 32;

/// Places on the axis `region` of `count` names: those of kRegionNames, with parts of the prompt
/// from 2 on.
struct RegionPlaces {
  std::size_t first = 0, prompt = 1, answer, decided, masks, after;
  constexpr explicit RegionPlaces(std::size_t count)
      : answer(count - 4), decided(count - 3), masks(count - 2), after(count - 1) {}
};

/// What stands at the positions of a sequence while a block is decoded.
struct SequenceRegions {
  RegionPlaces places;
  std::int64_t prompt_length = 0;
  std::int64_t block_start = 0, block_end = 0;
  std::span<const std::uint8_t> parts;  ///< [prompt_length], as /sequences/prompt_region; empty:
                                        ///< without parts
  /// `mask`: whether a position of the block is undecided.
  constexpr std::size_t at(std::int64_t position, bool mask) const {
    if (position >= block_end) return places.after;
    if (position >= block_start) return mask ? places.masks : places.decided;
    if (position < static_cast<std::int64_t>(parts.size())) {
      return parts[static_cast<std::size_t>(position)];
    }
    if (position < kFirstPositions) return places.first;
    return position < prompt_length ? places.prompt : places.answer;
  }
  /// The place of a position on the axis `answer_block`; -1 for one outside `answer`.
  constexpr std::int64_t answer_block(std::int64_t position) const {
    if (at(position, false) != places.answer) return -1;
    return std::min((block_start - 1 - position) / (block_end - block_start), kAnswerBlocks - 1);
  }
};

/// The bin of a distance of at least 1, rising powers of two: 0 for 1, 1 for 2 and 3, ...
constexpr std::int64_t distance_bin(std::int64_t distance) {
  std::int64_t bin = 0;
  while (distance >>= 1) ++bin;
  return bin;
}

/// Recorder levels; each includes the ones before it.
enum class RecordLevel : std::uint8_t { trajectory, summary, sets, outputs, full };

std::string_view to_string(RecordLevel level);
/// Throws UsageError that lists the five names.
RecordLevel parse_record_level(std::string_view name);

/// Element type of the large arrays ([row, layer, head, block, channel] and the like).
enum class ArrayType : std::uint8_t { bf16, f32 };

/// The keys over which the probabilities for the top-k sets are normalised (MAGE eq. 3: prefix).
enum class SetNormaliser : std::uint8_t { prefix, prefix_and_block };

/// The median times of a round of drafted decoding with blocks of this length.
struct DraftCost {
  std::int64_t block_length = 1;
  std::int64_t context_length = 0;  ///< keys before the block
  std::int64_t draft_ns = 0;        ///< time that the draft adds to a round; 0: nothing is drafted
  std::int64_t target_ns = 0;       ///< the target's pass over the block
};

struct TraceMeta : LayerSizes {
  std::int64_t format_version = kTraceFormatVersion;  ///< of the file that was read

  // The model, with its LayerSizes.
  std::int64_t hidden_size = 0;
  std::int64_t vocab_size = 0;
  std::int64_t mask_token_id = -1;  ///< -1: the model has none (autoregressive, or noise_canvas)
  bool noise_canvas = false;        ///< undecided positions of a block hold random tokens
  std::int64_t logit_shift = 0;     ///< 0: logits of position p predict p; 1: they predict p + 1
  bool bidirectional = false;       ///< external keys are all outside the block, not only before it
  double softmax_scale = 0.0;       ///< scores are q . k * softmax_scale

  // The run.
  std::int64_t block_length = 0;  ///< B
  RecordLevel level = RecordLevel::trajectory;
  std::int64_t set_size = 0;  ///< k of the top-k sets; 0: no set datasets
  SetNormaliser set_normaliser = SetNormaliser::prefix;
  std::int64_t selected_size = 0;      ///< keys a sparse policy selects; 0: no /attention/selected
  bool has_residual = false;           ///< the policy keeps a residual part
  bool has_shadow = false;             ///< exact values are computed in addition to the policy's
  bool has_cache = false;              ///< /cache says what each pass computed
  bool has_revocations = false;        ///< the strategy can take tokens back
  bool has_kl = false;                 ///< the strategy measures /prediction/kl
  bool has_draft = false;              ///< the model drafts for a target: /draft
  std::vector<DraftCost> draft_cost;   ///< rising block lengths 1 to B; empty: no /draft/cost
  std::int64_t draft_candidates = 0;   ///< tokens that its selector chooses from; 0: no selector
  std::int64_t experts_per_token = 0;  ///< in recorded router choices; 0: no /router
  std::vector<std::string> regions;    ///< of keys, along the axis `region`; empty: no /spread
  std::int64_t distance_bins = 0;      ///< powers of two per side of the block; 0 without /spread
  std::int64_t num_experts = 0;        ///< experts that a router chooses from; 0 without /router
  std::vector<std::int64_t> map_layers;  ///< recorded layers of /map, ascending; empty: no /map
  std::vector<std::int64_t> map_heads;   ///< its query heads, ascending; as many as 0 without /map
  std::int64_t map_positions = 0;        ///< its positions: the run's longest sequence
  bool has_set_norms = false;            ///< /sets has the norms of its keys and values
  bool has_answer_blocks = false;        ///< /spread has the weights of earlier answer blocks
  bool has_since_read = false;           ///< /steps/since_read and rows_read. The summaries of
                                         ///< other traces count reuse by step
  bool has_kept_pair = false;            ///< /summary has comparisons with the kept pair
  bool has_interventions = false;        ///< the run changes heads: /attention/intervened
  /// Tokens of a block of a continuous model (latents and timesteps instead of token ids); 0: a
  /// model of tokens. Its clean passes (commit) are steps as well, and frames hold no tokens.
  std::int64_t block_tokens = 0;
  /// Places in such a block of the rows along the axis block_position, rising. [block_length]
  std::vector<std::int64_t> block_rows;
  std::int64_t pair_steps = 0;  ///< earlier steps in /summary/step_pair; 0: no such dataset
  ArrayType array_type = ArrayType::bf16;

  /// Resolved config, checkpoint digest, source of each value.
  std::string model_json = R"({"requested":""})";
  /// Policy, decoding parameters, seed, versions, command line.
  std::string run_json = R"({"version":""})";
  std::vector<std::string> pieces;  ///< vocabulary piece of token i, as bytes; may be empty

  bool continuous() const { return block_tokens > 0; }
  /// What follow_delta() takes for undecided: a drafted token may have the id of the draft's mask.
  std::int64_t undecided_token() const { return has_draft ? -1 : mask_token_id; }
  /// Length of the axis `channel`: the largest head_dim of a recorded layer.
  std::int64_t channels() const;
  /// Fills layers, heads and kv_heads with everything the model has.
  void record_everything();
};

/// The format_version of a trace like this one that is written now.
inline std::int64_t version_of(const TraceMeta& meta) {
  if (meta.ragged() || meta.noise_canvas) return kRaggedFormatVersion;
  return meta.continuous() ? kContinuousFormatVersion : kTraceFormatVersion;
}

/// Throws UsageError that names the field if the numbers contradict each other.
void check_meta(const TraceMeta& meta);

/// A stable identity of a prompt: SHA-256 of its token ids as little-endian int64.
using PromptHash = std::array<std::uint8_t, 32>;
PromptHash hash_prompt(std::span<const std::int64_t> tokens);
std::string to_hex(const PromptHash& hash);

/// Kinds of forward passes, as stored in /steps/kind.
enum class PassKind : std::uint8_t { prefill = 0, denoise = 1, commit = 2 };
/// Whether a pass of this kind is a step of its block.
constexpr bool is_step(PassKind kind, bool continuous) {
  return kind == PassKind::denoise || (continuous && kind == PassKind::commit);
}

/// Why a sequence ended, as stored in /sequences/finish_reason.
enum class FinishReason : std::uint8_t {
  unfinished = 0,  ///< still decoding, or cut by a kill (then a resume sets `aborted`)
  length = 1,      ///< all blocks decoded
  stop = 2,        ///< a stop token was found
  replayed = 3,    ///< the replayed trajectory ended
  interrupted = 4  ///< a signal or an error ended the run
};

std::string_view to_string(FinishReason reason);
/// The reason with this name, if there is one.
std::optional<FinishReason> parse_finish_reason(std::string_view name);

}  // namespace blockscope
