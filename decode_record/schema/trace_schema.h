// Schema 2 of the trace file: every dataset with its path, element type, axes and storage. This
// table is the only definition. TraceWriter, TraceReader and docs/trace_format.md follow it (a test
// compares the document with the table). The header is long because the table has a line per
// dataset.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

namespace blockscope {

inline constexpr std::string_view kTraceFormat = "blockscope-trace";
inline constexpr std::int64_t kTraceFormatVersion = 2;
/// Of traces of continuous models (TraceMeta::continuous).
inline constexpr std::int64_t kContinuousFormatVersion = 3;
/// Of traces with layers of different sizes (TraceMeta::ragged) or without masks
/// (TraceMeta::noise_canvas); the largest that is read.
inline constexpr std::int64_t kRaggedFormatVersion = 4;
inline constexpr std::array<float, 4> kReuseTaus{2.0F, 3.0F, 4.0F,
                                                 std::numeric_limits<float>::infinity()};
inline constexpr std::size_t kMaxRank = 6;

// clang-format off
/// A dataset of the file; the order is that of kDatasets.
enum class Field : std::uint8_t {
  // coordinates of the axes (dimension scales)
  row, layer, head, kv_head, block_position, channel, hidden_channel, rank, selected_rank, tau,
  error_sum, row_kind, kept_sum, earlier_step, pair_sum, per_token, model_layer, side, distance,
  offset, region, answer_block, map_layer, map_head, position, candidate,
  // what ran
  model_json, layer_kv_heads, layer_head_dim, layer_window, run_json, run_complete, token_offset,
  token_bytes,
  // sequences; start and length count in /sequences/bytes or /sequences/prompt_token
  sequence_committed, sequence_prompt_hash, sequence_gen_length, sequence_prompt_start,
  sequence_prompt_length, sequence_name_start, sequence_name_length, sequence_answer_start,
  sequence_answer_length, sequence_metric_start, sequence_metric_length, sequence_text_start,
  sequence_text_length, sequence_score, sequence_aborted, sequence_finish_reason,
  sequence_prompt_token, sequence_prompt_region, sequence_bytes,
  // one row per forward pass of a sequence
  step_committed, step_sequence, step_pass, step_previous, step_kind, step_block,
  step_block_start, step_step, step_context_length, step_changed, step_since_read, step_rows_read,
  step_masks_left, step_valid, step_recorded, step_pass_time_ns, step_timestep,
  // decoding trajectory, CSR: row r owns [end[r-1], end[r])
  delta_end, delta_position, delta_token, delta_confidence, delta_step, insert_end,
  insert_position, insert_token, insert_confidence, insert_step, delete_end, delete_position,
  row_keyframe, keyframe_row, keyframe_end, keyframe_token, keyframe_confidence, keyframe_step,
  revoke_end, revoke_position, revoke_token, revoke_confidence,
  // what a pass of a bidirectional model computed, CSR over (row, model layer)
  query_end, query_start, query_stop, key_end, key_start, key_stop, value_end, value_start,
  value_stop,
  // predictions of every pass
  prediction_token, prediction_confidence, prediction_kl_step1, prediction_kl,
  // a target's decisions on a draft's block
  draft_accepted, draft_token, draft_confidence, draft_target_token, target_rank_under_draft,
  target_probability_under_draft, drafted_rank_under_target, drafted_probability_under_target,
  draft_entropy, draft_target_entropy, candidate_token, candidate_probability, candidate_score,
  candidate_chosen, candidate_target,
  // how long passes of a draft and of its target take
  cost_block_length, cost_context_length, cost_draft_ns, cost_target_ns,
  // attention as it was used
  attention_external, attention_internal, attention_lse_external, attention_lse_internal,
  attention_residual, attention_lse_residual, attention_reused, attention_selected,
  attention_intervened,
  // exact values, in addition to the policy's
  shadow_external, shadow_lse_external, shadow_output_error, shadow_key_cosine,
  shadow_value_cosine, shadow_attention_cosine,
  // top-k sets of exact attention
  set_topk, set_probability, set_recall, set_union_size, set_covered, set_topk_token,
  set_key_norm, set_value_norm,
  // tensors
  query, hidden, block_key, block_value, prefix_end, prefix_sequence, prefix_position, prefix_key,
  prefix_value,
  // summaries
  similarity_external, similarity_internal, external_mass, hidden_gap, query_gap, query_block_gap,
  reuse_error, kept_pair, step_pair,
  // how the weights are spread over the keys
  spread_entropy, spread_largest, spread_distance, spread_offset, spread_region,
  spread_answer_block,
  // weights themselves
  map_weight,
  // what the routers of experts chose
  router_expert, router_weight,
  count
};

inline constexpr std::size_t kNumFields = static_cast<std::size_t>(Field::count);

/// `array` stands for the run's ArrayType, `f16` for IEEE binary16. Unwritten elements read as NaN
/// (floats), -1 (i32, i64), 0 (u8).
enum class ElementType : std::uint8_t { u8, i32, i64, f32, f16, array };

/// Axis names are the names of the dimension scales at the root of the file.
enum class Axis : std::uint8_t {
  row, layer, head, kv_head, block_position, channel, hidden_channel, rank, selected_rank, tau,
  error_sum, row_kind, kept_sum, earlier_step, pair_sum, per_token, model_layer, side, distance,
  offset, region, answer_block, map_layer, map_head, position, candidate, model_byte, run_byte, one, piece_boundary, piece_byte, sequence, hash_byte,
  prompt_element, text_byte, delta, insertion, deletion, keyframe, keyframe_element,
  prefix_element, revocation, query_range, key_range, value_range, draft_cost,
  count
};
// clang-format on

enum class Storage : std::uint8_t {
  fixed,         ///< contiguous, written once before the first row
  cell,          ///< contiguous, rewritten in place while the file grows
  column,        ///< chunks of up to 1,024 rows and 64 KiB
  column_layer,  ///< chunks of up to 1,024 rows and 64 KiB of one recorded layer
  row,           ///< one chunk per row
  row_layer      ///< one chunk per row and recorded layer
};

/// When a dataset exists. The level names mean "at this level and the ones above".
enum class Exists : std::uint8_t {
  always,
  since_read,  ///< has_since_read
  summary,
  sets,  ///< level sets, and set_size > 0
  outputs,
  full,
  sets_full,       ///< level full, and set_size > 0
  set_norms,       ///< as `sets`, and has_set_norms
  selected,        ///< level summary, and selected_size > 0
  residual,        ///< level outputs, and has_residual
  lse_residual,    ///< level summary, and has_residual
  shadow,          ///< level summary, and has_shadow
  shadow_outputs,  ///< level outputs, and has_shadow
  spread,          ///< level summary, and regions
  answer_blocks,   ///< as `spread`, and has_answer_blocks
  kept_pair,       ///< level summary, and has_kept_pair
  continuous,      ///< block_tokens > 0
  step_pairs,      ///< level summary, and pair_steps > 0
  prompt_regions,  ///< as `spread`, and regions of a prompt's parts
  intervened,      ///< level summary, and has_interventions
  maps,            ///< level summary, and map_layers
  router,          ///< level summary, and experts_per_token > 0
  cache,           ///< has_cache
  ragged,          ///< layer_kv_heads, layer_head_dim, layer_window
  model_layers,    ///< has_cache, or those of `ragged`
  revocations,     ///< has_revocations
  kl,              ///< has_kl
  draft,           ///< has_draft
  draft_cost,      ///< draft_costs > 0
  candidates,      ///< draft_candidates > 0
  staleness        ///< level summary, has_cache and has_shadow
};

struct DatasetSpec {
  Field field;
  std::string_view path;
  ElementType type;
  std::size_t rank;
  std::array<Axis, kMaxRank> axes;  ///< the first `rank` count
  Storage storage;
  Exists exists;
  std::string_view description;

  /// The first axis grows while the trace is written.
  bool extendible() const { return storage >= Storage::column; }
  /// Rows of this dataset are rows of /steps.
  bool per_row() const { return extendible() && axes[0] == Axis::row; }
};

// clang-format off
inline constexpr std::array<DatasetSpec, kNumFields> kDatasets = [] {
  using enum ElementType;
  using F = Field;
  using A = Axis;
  using S = Storage;
  using E = Exists;
  using Axes = std::array<Axis, kMaxRank>;
  constexpr Axes rm{A::row, A::model_layer};
  constexpr Axes rl{A::row, A::layer};
  constexpr Axes rlhbd{A::row, A::layer, A::head, A::block_position, A::channel};
  constexpr Axes rlhb{A::row, A::layer, A::head, A::block_position};
  constexpr Axes rlh{A::row, A::layer, A::head};
  constexpr Axes rlkp{A::row, A::layer, A::kv_head, A::selected_rank};
  constexpr Axes rlks{A::row, A::layer, A::kv_head, A::rank};
  constexpr Axes rlk{A::row, A::layer, A::kv_head};
  constexpr Axes rlkbs{A::row, A::layer, A::kv_head, A::block_position, A::rank};
  constexpr Axes rlbc{A::row, A::layer, A::block_position, A::hidden_channel};
  constexpr Axes rlkbd{A::row, A::layer, A::kv_head, A::block_position, A::channel};
  constexpr Axes xlkd{A::prefix_element, A::layer, A::kv_head, A::channel};
  constexpr Axes rlbp{A::row, A::layer, A::block_position, A::per_token};
  constexpr Axes rlhs{A::row, A::layer, A::head, A::side};
  constexpr Axes rtlhe{A::row, A::tau, A::layer, A::head, A::error_sum};
  constexpr Axes rtlhks{A::row, A::tau, A::layer, A::head, A::row_kind, A::kept_sum};
  constexpr Axes relhp{A::row, A::earlier_step, A::layer, A::head, A::pair_sum};
  return std::array<DatasetSpec, kNumFields>{{
    // coordinates of the axes (dimension scales)
    {F::row, "/row", i64, 1, {A::row}, S::column, E::always, "row number"},
    {F::layer, "/layer", i32, 1, {A::layer}, S::fixed, E::always,
     "model layer of each recorded layer"},
    {F::head, "/head", i32, 1, {A::head}, S::fixed, E::always,
     "model query head of each recorded head"},
    {F::kv_head, "/kv_head", i32, 1, {A::kv_head}, S::fixed, E::always,
     "model KV head of each recorded KV head"},
    {F::block_position, "/block_position", i32, 1, {A::block_position}, S::fixed, E::always,
     "0 .. B-1"},
    {F::channel, "/channel", i32, 1, {A::channel}, S::fixed, E::outputs, "0 .. head_dim-1"},
    {F::hidden_channel, "/hidden_channel", i32, 1, {A::hidden_channel}, S::fixed, E::full,
     "0 .. hidden_size-1"},
    {F::rank, "/rank", i32, 1, {A::rank}, S::fixed, E::sets, "0 .. k-1, by falling score"},
    {F::selected_rank, "/selected_rank", i32, 1, {A::selected_rank}, S::fixed, E::selected,
     "0 .. selected_size-1"},
    {F::tau, "/tau", f32, 1, {A::tau}, S::fixed, E::summary, "2, 3, 4, inf"},
    {F::error_sum, "/error_sum", i32, 1, {A::error_sum}, S::fixed, E::summary,
     "0: sum e^2, 1: sum |e|, 2: sum ref^2, 3: sum dot"},
    {F::row_kind, "/row_kind", i32, 1, {A::row_kind}, S::fixed, E::kept_pair,
     "0: masks, 1: known at the read, 2: decided since"},
    {F::kept_sum, "/kept_sum", i32, 1, {A::kept_sum}, S::fixed, E::kept_pair,
     "0: positions, 1: sum cosine, 2: sum of L_out's change, 3: sum e^2, 4: sum ref^2"},
    {F::earlier_step, "/earlier_step", i32, 1, {A::earlier_step}, S::fixed, E::step_pairs,
     "1 .. pair_steps: a step of the block"},
    {F::pair_sum, "/pair_sum", i32, 1, {A::pair_sum}, S::fixed, E::step_pairs,
     "0: positions, 1: sum cosine, 2: sum of L_out's change, 3: sum e^2, 4: sum |e|, 5: sum ref^2, "
     "6: sum dot"},
    {F::per_token, "/per_token", i32, 1, {A::per_token}, S::fixed, E::router,
     "0 .. experts_per_token-1"},
    {F::model_layer, "/model_layer", i32, 1, {A::model_layer}, S::fixed, E::model_layers,
     "0 .. num_layers-1"},
    {F::side, "/side", i32, 1, {A::side}, S::fixed, E::spread,
     "0: external keys, 1: keys of the block, 2: all"},
    {F::distance, "/distance", i32, 1, {A::distance}, S::fixed, E::spread,
     "smallest distance of each bin from the block, -: before it"},
    {F::offset, "/offset", i32, 1, {A::offset}, S::fixed, E::spread,
     "position of a key of the block minus that of the query"},
    {F::region, "/region", i32, 1, {A::region}, S::fixed, E::spread,
     "0 .. R-1; the names are in the attribute `regions`"},
    {F::answer_block, "/answer_block", i32, 1, {A::answer_block}, S::fixed, E::answer_blocks,
     "1 .. 32: how many blocks before this one"},
    {F::map_layer, "/map_layer", i32, 1, {A::map_layer}, S::fixed, E::maps,
     "model layer of each layer of /map"},
    {F::map_head, "/map_head", i32, 1, {A::map_head}, S::fixed, E::maps,
     "model query head of each head of /map"},
    {F::position, "/position", i32, 1, {A::position}, S::fixed, E::maps,
     "absolute positions of keys, from 0"},
    {F::candidate, "/candidate", i32, 1, {A::candidate}, S::fixed, E::candidates,
     "0 .. draft_candidates-1, by falling probability"},
    // what ran
    {F::model_json, "/model/json", u8, 1, {A::model_byte}, S::fixed, E::always, "UTF-8 JSON"},
    {F::layer_kv_heads, "/model/layer_kv_heads", i32, 1, {A::model_layer}, S::fixed, E::ragged,
     "KV heads of each layer of the model"},
    {F::layer_head_dim, "/model/layer_head_dim", i32, 1, {A::model_layer}, S::fixed, E::ragged,
     "head_dim of each layer of the model"},
    {F::layer_window, "/model/layer_window", i32, 1, {A::model_layer}, S::fixed, E::ragged,
     "W: the newest W - 1 keys before the block are external keys; 0: all"},
    {F::run_json, "/run/json", u8, 1, {A::run_byte}, S::fixed, E::always, "UTF-8 JSON"},
    {F::run_complete, "/run/complete", u8, 1, {A::one}, S::cell, E::always,
     "1 when the run ended by itself and the file is whole"},
    {F::token_offset, "/tokenizer/piece_offset", i64, 1, {A::piece_boundary}, S::fixed, E::always,
     "piece i = bytes [offset[i], offset[i+1])"},
    {F::token_bytes, "/tokenizer/piece_bytes", u8, 1, {A::piece_byte}, S::fixed, E::always,
     "pieces one after the other"},
    // sequences; start and length count in /sequences/bytes or /sequences/prompt_token
    {F::sequence_committed, "/sequences/committed", i64, 1, {A::one}, S::cell, E::always,
     "readable sequences"},
    {F::sequence_prompt_hash, "/sequences/prompt_hash", u8, 2, {A::sequence, A::hash_byte},
     S::column, E::always, "SHA-256 of the tokens as int64 LE"},
    {F::sequence_gen_length, "/sequences/gen_length", i32, 1, {A::sequence}, S::column, E::always,
     "positions after the prompt"},
    {F::sequence_prompt_start, "/sequences/prompt_start", i64, 1, {A::sequence},
     S::column, E::always, "first element in prompt_token"},
    {F::sequence_prompt_length, "/sequences/prompt_length", i32, 1, {A::sequence},
     S::column, E::always, "tokens"},
    {F::sequence_name_start, "/sequences/name_start", i64, 1, {A::sequence}, S::column, E::always,
     "first byte"},
    {F::sequence_name_length, "/sequences/name_length", i32, 1, {A::sequence}, S::column, E::always,
     "bytes, UTF-8"},
    {F::sequence_answer_start, "/sequences/answer_start", i64, 1, {A::sequence},
     S::column, E::always, "first byte"},
    {F::sequence_answer_length, "/sequences/answer_length", i32, 1, {A::sequence},
     S::column, E::always, "bytes, UTF-8; expected answer"},
    {F::sequence_metric_start, "/sequences/metric_start", i64, 1, {A::sequence},
     S::column, E::always, "first byte"},
    {F::sequence_metric_length, "/sequences/metric_length", i32, 1, {A::sequence},
     S::column, E::always, "bytes, UTF-8; name of the metric"},
    {F::sequence_text_start, "/sequences/text_start", i64, 1, {A::sequence}, S::column, E::always,
     "first byte"},
    {F::sequence_text_length, "/sequences/text_length", i32, 1, {A::sequence}, S::column, E::always,
     "bytes; generated text"},
    {F::sequence_score, "/sequences/score", f32, 1, {A::sequence}, S::column, E::always,
     "value of the metric, NaN: none"},
    {F::sequence_aborted, "/sequences/aborted", u8, 1, {A::sequence}, S::column, E::always,
     "1: cut by a kill, decoded again later"},
    {F::sequence_finish_reason, "/sequences/finish_reason", u8, 1, {A::sequence},
     S::column, E::always, "0 unfinished 1 length 2 stop 3 replayed 4 interrupted"},
    {F::sequence_prompt_token, "/sequences/prompt_token", i32, 1, {A::prompt_element},
     S::column, E::always, "prompts one after the other"},
    {F::sequence_prompt_region, "/sequences/prompt_region", u8, 1, {A::prompt_element},
     S::column, E::prompt_regions, "region of each token of the prompt, index into `regions`"},
    {F::sequence_bytes, "/sequences/bytes", u8, 1, {A::text_byte}, S::column, E::always,
     "names, answers, metrics, texts"},
    // one row per forward pass of a sequence
    {F::step_committed, "/steps/committed", i64, 1, {A::one}, S::cell, E::always, "readable rows"},
    {F::step_sequence, "/steps/sequence", i32, 1, {A::row}, S::column, E::always,
     "index into /sequences"},
    {F::step_pass, "/steps/pass", i64, 1, {A::row}, S::column, E::always,
     "forward pass of the run, the same for a whole batch"},
    {F::step_previous, "/steps/previous", i64, 1, {A::row}, S::column, E::always,
     "previous row of the same sequence, -1: none"},
    {F::step_kind, "/steps/kind", u8, 1, {A::row}, S::column, E::always,
     "0 prefill 1 denoise 2 commit"},
    {F::step_block, "/steps/block", i32, 1, {A::row}, S::column, E::always,
     "block of the sequence, -1 in a prefill"},
    {F::step_block_start, "/steps/block_start", i32, 1, {A::row}, S::column, E::always,
     "absolute position of the block's first token"},
    {F::step_step, "/steps/step", i32, 1, {A::row}, S::column, E::always,
     "denoising step from 1; 0 in prefill and commit"},
    {F::step_context_length, "/steps/context_length", i32, 1, {A::row}, S::column, E::always,
     "N, external keys"},
    {F::step_changed, "/steps/changed", i32, 1, {A::row}, S::column, E::always,
     "M, inputs that differ from the step before"},
    {F::step_since_read, "/steps/since_read", i32, 1, {A::row}, S::column, E::since_read,
     "tokens decided since the block's last pass that read the prefix"},
    {F::step_rows_read, "/steps/rows_read", i32, 1, {A::row}, S::column, E::since_read,
     "rows that read the prefix in every head; 0: heads may reuse"},
    {F::step_masks_left, "/steps/masks_left", i32, 1, {A::row}, S::column, E::always,
     "masks in the block's input"},
    {F::step_valid, "/steps/valid", u8, 2, {A::row, A::block_position}, S::column, E::always,
     "1: the position exists in this pass"},
    {F::step_recorded, "/steps/recorded", u8, 1, {A::row}, S::column, E::always,
     "1: the row passed the recorder's filters"},
    {F::step_pass_time_ns, "/steps/pass_time_ns", i64, 1, {A::row}, S::column, E::always,
     "duration of the forward pass"},
    {F::step_timestep, "/steps/timestep", f32, 1, {A::row}, S::column, E::continuous,
     "the timestep that the model was called with"},
    // decoding trajectory, CSR: row r owns [end[r-1], end[r])
    {F::delta_end, "/frames/delta_end", i64, 1, {A::row}, S::column, E::always,
     "end of the row in position, token, confidence, step"},
    {F::delta_position, "/frames/position", i32, 1, {A::delta}, S::column, E::always,
     "position after the prompt"},
    {F::delta_token, "/frames/token", i32, 1, {A::delta}, S::column, E::always, ""},
    {F::delta_confidence, "/frames/confidence", f32, 1, {A::delta}, S::column, E::always, ""},
    {F::delta_step, "/frames/step", i32, 1, {A::delta}, S::column, E::always,
     "step number of the token in its sequence"},
    {F::insert_end, "/frames/insert_end", i64, 1, {A::row}, S::column, E::always,
     "end of the row in insert_*"},
    {F::insert_position, "/frames/insert_position", i32, 1, {A::insertion}, S::column, E::always,
     "before this position, in the frame before insertion"},
    {F::insert_token, "/frames/insert_token", i32, 1, {A::insertion}, S::column, E::always, ""},
    {F::insert_confidence, "/frames/insert_confidence", f32, 1, {A::insertion},
     S::column, E::always, ""},
    {F::insert_step, "/frames/insert_step", i32, 1, {A::insertion}, S::column, E::always, ""},
    {F::delete_end, "/frames/delete_end", i64, 1, {A::row}, S::column, E::always,
     "end of the row in delete_position"},
    {F::delete_position, "/frames/delete_position", i32, 1, {A::deletion}, S::column, E::always,
     "in the frame after insertion"},
    {F::row_keyframe, "/frames/keyframe", i64, 1, {A::row}, S::column, E::always,
     "latest keyframe at or before the row"},
    {F::keyframe_row, "/frames/keyframe_row", i64, 1, {A::keyframe}, S::column, E::always,
     "the keyframe is the state before this row"},
    {F::keyframe_end, "/frames/keyframe_end", i64, 1, {A::keyframe}, S::column, E::always,
     "end in keyframe_token, _confidence, _step"},
    {F::keyframe_token, "/frames/keyframe_token", i32, 1, {A::keyframe_element},
     S::column, E::always, ""},
    {F::keyframe_confidence, "/frames/keyframe_confidence", f32, 1, {A::keyframe_element},
     S::column, E::always, ""},
    {F::keyframe_step, "/frames/keyframe_step", i32, 1, {A::keyframe_element}, S::column, E::always,
     ""},
    {F::revoke_end, "/frames/revoke_end", i64, 1, {A::row}, S::column, E::revocations,
     "end of the row in revoke_*"},
    {F::revoke_position, "/frames/revoke_position", i32, 1, {A::revocation}, S::column,
     E::revocations, "position after the prompt whose token was taken back"},
    {F::revoke_token, "/frames/revoke_token", i32, 1, {A::revocation}, S::column, E::revocations,
     "that token"},
    {F::revoke_confidence, "/frames/revoke_confidence", f32, 1, {A::revocation}, S::column,
     E::revocations, "its probability when masked again"},
    // what a pass of a bidirectional model computed, CSR over (row, model layer)
    {F::query_end, "/cache/query_end", i64, 2, rm, S::column, E::cache,
     "end of the row's layer in query_start, query_stop"},
    {F::query_start, "/cache/query_start", i32, 1, {A::query_range}, S::column, E::cache,
     "first position of a range whose queries, attention and FFN were computed"},
    {F::query_stop, "/cache/query_stop", i32, 1, {A::query_range}, S::column, E::cache,
     "position after the range"},
    {F::key_end, "/cache/key_end", i64, 2, rm, S::column, E::cache,
     "end of the row's layer in key_start, key_stop"},
    {F::key_start, "/cache/key_start", i32, 1, {A::key_range}, S::column, E::cache,
     "first position of a range whose keys were written"},
    {F::key_stop, "/cache/key_stop", i32, 1, {A::key_range}, S::column, E::cache,
     "position after the range"},
    {F::value_end, "/cache/value_end", i64, 2, rm, S::column, E::cache,
     "end of the row's layer in value_start, value_stop"},
    {F::value_start, "/cache/value_start", i32, 1, {A::value_range}, S::column, E::cache,
     "first position of a range whose values were written"},
    {F::value_stop, "/cache/value_stop", i32, 1, {A::value_range}, S::column, E::cache,
     "position after the range"},
    // predictions of every pass
    {F::prediction_token, "/prediction/token", i32, 2, {A::row, A::block_position},
     S::column, E::always, "most probable token"},
    {F::prediction_confidence, "/prediction/confidence", f32, 2, {A::row, A::block_position},
     S::column, E::always, "its probability"},
    {F::prediction_kl_step1, "/prediction/kl_step1", f32, 2, {A::row, A::block_position},
     S::column, E::summary, "KL(p step 1, p this step), S1"},
    {F::prediction_kl, "/prediction/kl", f32, 2, {A::row, A::block_position}, S::column, E::kl,
     "KL(p this step, p of its last prediction in the block), KLASS"},
    // a target's decisions on a draft's block
    {F::draft_accepted, "/draft/accepted", i32, 1, {A::row}, S::column, E::draft,
     "drafted tokens that the target accepted, from block position 1 on; -1: no draft's pass"},
    {F::draft_token, "/draft/token", i32, 2, {A::row, A::block_position},
     S::column, E::draft, "the drafted token"},
    {F::draft_confidence, "/draft/confidence", f32, 2, {A::row, A::block_position},
     S::column, E::draft, "its probability under the draft"},
    {F::draft_target_token, "/draft/target_token", i32, 2, {A::row, A::block_position},
     S::column, E::draft, "the target's choice"},
    {F::target_rank_under_draft, "/draft/target_rank_under_draft",
     i32, 2, {A::row, A::block_position}, S::column, E::draft,
     "its rank under the draft, from 0; -1: not in the draft's vocabulary"},
    {F::target_probability_under_draft, "/draft/target_probability_under_draft",
     f32, 2, {A::row, A::block_position}, S::column, E::draft, "its probability under the draft"},
    {F::drafted_rank_under_target, "/draft/drafted_rank_under_target",
     i32, 2, {A::row, A::block_position}, S::column, E::draft,
     "rank of the drafted token under the target, from 0"},
    {F::drafted_probability_under_target, "/draft/drafted_probability_under_target",
     f32, 2, {A::row, A::block_position}, S::column, E::draft, "its probability under the target"},
    {F::draft_entropy, "/draft/draft_entropy", f32, 2, {A::row, A::block_position},
     S::column, E::draft, "of the draft's distribution, nats"},
    {F::draft_target_entropy, "/draft/target_entropy", f32, 2, {A::row, A::block_position},
     S::column, E::draft, "of the target's distribution, nats"},
    {F::candidate_token, "/draft/candidate_token", i32, 3,
     {A::row, A::block_position, A::candidate}, S::column, E::candidates,
     "the draft's most probable tokens, from which its selector chose"},
    {F::candidate_probability, "/draft/candidate_probability", f32, 3,
     {A::row, A::block_position, A::candidate}, S::column, E::candidates,
     "their probability under the draft, before the selector"},
    {F::candidate_score, "/draft/candidate_score", f32, 3,
     {A::row, A::block_position, A::candidate}, S::column, E::candidates,
     "the selector's scores after the token that it chose before"},
    {F::candidate_chosen, "/draft/candidate_chosen", i32, 2, {A::row, A::block_position},
     S::column, E::candidates, "the candidate that is the drafted token"},
    {F::candidate_target, "/draft/candidate_target", i32, 2, {A::row, A::block_position},
     S::column, E::candidates, "the candidate that is the target's choice; -1: none of them"},
    // how long passes of a draft and of its target take
    {F::cost_block_length, "/draft/cost/block_length", i32, 1, {A::draft_cost}, S::fixed,
     E::draft_cost, "positions of the block, rising from 1 to B"},
    {F::cost_context_length, "/draft/cost/context_length", i32, 1, {A::draft_cost}, S::fixed,
     E::draft_cost, "keys before it"},
    {F::cost_draft_ns, "/draft/cost/draft_ns", i64, 1, {A::draft_cost}, S::fixed, E::draft_cost,
     "median time of what the draft adds to a round; 0 where nothing is drafted"},
    {F::cost_target_ns, "/draft/cost/target_ns", i64, 1, {A::draft_cost}, S::fixed, E::draft_cost,
     "median time of the target's pass over the block"},
    // attention as it was used
    {F::attention_external, "/attention/external", array, 5, rlhbd, S::row_layer, E::outputs,
     "A_out"},
    {F::attention_internal, "/attention/internal", array, 5, rlhbd, S::row_layer, E::outputs,
     "A_in"},
    {F::attention_lse_external, "/attention/lse_external", f32, 4, rlhb, S::row, E::summary,
     "L_out, natural log; -inf: no key"},
    {F::attention_lse_internal, "/attention/lse_internal", f32, 4, rlhb, S::row, E::summary,
     "L_in"},
    {F::attention_residual, "/attention/residual", array, 5, rlhbd, S::row_layer, E::residual,
     "unselected keys"},
    {F::attention_lse_residual, "/attention/lse_residual", f32, 4, rlhb, S::row, E::lse_residual,
     ""},
    {F::attention_reused, "/attention/reused", u8, 3, rlh, S::column, E::summary,
     "1: A_out, L_out of an earlier step"},
    {F::attention_selected, "/attention/selected", i32, 4, rlkp, S::row, E::selected,
     "keys a sparse policy read, -1: none"},
    {F::attention_intervened, "/attention/intervened", u8, 3, rlh, S::column, E::intervened,
     "1: an intervention changed the head's parts"},
    // exact values, in addition to the policy's
    {F::shadow_external, "/shadow/external", array, 5, rlhbd, S::row_layer, E::shadow_outputs,
     "exact A_out"},
    {F::shadow_lse_external, "/shadow/lse_external", f32, 4, rlhb, S::row, E::shadow,
     "exact L_out"},
    {F::shadow_output_error, "/shadow/output_error", f32, 3, rlh, S::column, E::shadow,
     "relative L2 error of the merged output"},
    {F::shadow_key_cosine, "/shadow/key_cosine", f32, 2, rl, S::column, E::staleness,
     "mean cosine of kept keys to those of a pass without cache"},
    {F::shadow_value_cosine, "/shadow/value_cosine", f32, 2, rl, S::column, E::staleness,
     "the same of kept values"},
    {F::shadow_attention_cosine, "/shadow/attention_cosine", f32, 2, rl, S::column, E::staleness,
     "the same of the attention output of the block's computed rows"},
    // top-k sets of exact attention
    {F::set_topk, "/sets/topk", i32, 4, rlks, S::row, E::sets,
     "positions by falling score, -1: N < k"},
    {F::set_probability, "/sets/probability", f32, 4, rlks, S::row, E::sets,
     "mean probability of each"},
    {F::set_recall, "/sets/recall", f32, 3, rlk, S::column, E::sets,
     "share of step 1's set still in this one"},
    {F::set_union_size, "/sets/union_size", i32, 3, rlk, S::column, E::sets,
     "size of the union of the per-token sets"},
    {F::set_covered, "/sets/covered", f32, 3, rlk, S::column, E::sets, "probability on the set"},
    {F::set_topk_token, "/sets/topk_token", i32, 5, rlkbs, S::row_layer, E::sets_full,
     "set of each token"},
    {F::set_key_norm, "/sets/key_norm", f32, 4, rlks, S::row, E::set_norms,
     "L2 norm of each key of topk, after QK-norm and RoPE"},
    {F::set_value_norm, "/sets/value_norm", f32, 4, rlks, S::row, E::set_norms,
     "L2 norm of its value"},
    // tensors
    {F::query, "/query/query", array, 5, rlhbd, S::row_layer, E::outputs, "after QK-norm and RoPE"},
    {F::hidden, "/hidden/hidden", array, 4, rlbc, S::row_layer, E::full, "input of the layer"},
    {F::block_key, "/kv/key", array, 5, rlkbd, S::row_layer, E::full, "after QK-norm and RoPE"},
    {F::block_value, "/kv/value", array, 5, rlkbd, S::row_layer, E::full, ""},
    {F::prefix_end, "/prefix/end", i64, 1, {A::row}, S::column, E::full,
     "end of the keys this row stored (prefill, commit)"},
    {F::prefix_sequence, "/prefix/sequence", i32, 1, {A::prefix_element}, S::column, E::full,
     "sequence of the key"},
    {F::prefix_position, "/prefix/position", i32, 1, {A::prefix_element}, S::column, E::full,
     "absolute position of the key"},
    {F::prefix_key, "/prefix/key", array, 4, xlkd, S::column_layer, E::full,
     "after QK-norm and RoPE"},
    {F::prefix_value, "/prefix/value", array, 4, xlkd, S::column_layer, E::full, ""},
    // summaries
    {F::similarity_external, "/summary/similarity_external", f32, 3, rlh, S::column, E::summary,
     "mean cosine of exact A_out to the previous step"},
    {F::similarity_internal, "/summary/similarity_internal", f32, 3, rlh, S::column, E::summary,
     "the same of A_in"},
    {F::external_mass, "/summary/external_mass", f32, 3, rlh, S::column, E::summary,
     "exp(L_out) / (exp(L_in) + exp(L_out)), mean"},
    {F::hidden_gap, "/summary/hidden_gap", f32, 2, {A::row, A::layer}, S::column, E::summary,
     "S2 to step 1"},
    {F::query_gap, "/summary/query_gap", f32, 3, rlh, S::column, E::summary, "S3 to step 1"},
    {F::query_block_gap, "/summary/query_block_gap", f32, 3, rlh, S::column, E::summary,
     "S4 to step 1"},
    {F::reuse_error, "/summary/reuse_error", f32, 5, rtlhe, S::column, E::summary,
     "sums of the one-step reuse error"},
    {F::kept_pair, "/summary/kept_pair", f32, 6, rtlhks, S::column, E::kept_pair,
     "sums of the comparison with the kept pair; NaN: the rule reads at this step"},
    {F::step_pair, "/summary/step_pair", f32, 5, relhp, S::column, E::step_pairs,
     "sums of the comparison with each earlier step of the block; NaN: no such step"},
    // how the weights are spread over the keys
    {F::spread_entropy, "/spread/entropy", f32, 4, rlhs, S::column, E::spread,
     "entropy of the weights in nats, mean over the queries"},
    {F::spread_largest, "/spread/largest", f32, 4, rlhs, S::column, E::spread,
     "largest weight among the side's keys, mean over the queries"},
    {F::spread_distance, "/spread/distance", f32, 4, {A::row, A::layer, A::head, A::distance},
     S::column, E::spread, "weight of external keys by distance from the block"},
    {F::spread_offset, "/spread/offset", f32, 4, {A::row, A::layer, A::head, A::offset},
     S::column, E::spread, "weight of keys of the block by distance from the query"},
    {F::spread_region, "/spread/region", f32, 4, {A::row, A::layer, A::head, A::region},
     S::column, E::spread, "weight of keys by region"},
    {F::spread_answer_block, "/spread/answer_block", f32, 4,
     {A::row, A::layer, A::head, A::answer_block}, S::column, E::answer_blocks,
     "weight of each earlier answer block"},
    // weights themselves
    {F::map_weight, "/map/weight", f16, 5,
     {A::row, A::map_layer, A::map_head, A::block_position, A::position}, S::row, E::maps,
     "exact weight of the key at each position, over all keys; NaN: no such query or key"},
    // what the routers of experts chose
    {F::router_expert, "/router/expert", i32, 4, rlbp, S::row, E::router,
     "chosen experts by falling weight, -1: the layer has none"},
    {F::router_weight, "/router/weight", f32, 4, rlbp, S::row, E::router,
     "what each expert's output is multiplied by"},
  }};
}();
// clang-format on

/// A dataset of range ends, one for each row (and model layer): element i owns
/// [end[i - 1], end[i]) of the datasets with the first axis `axis`.
struct RangeSpec {
  Field end;
  Axis axis;
  Field first;  ///< one of the datasets with this axis
};
inline constexpr std::array<RangeSpec, 8> kRowRanges{
    {{Field::delta_end, Axis::delta, Field::delta_position},
     {Field::insert_end, Axis::insertion, Field::insert_position},
     {Field::delete_end, Axis::deletion, Field::delete_position},
     {Field::prefix_end, Axis::prefix_element, Field::prefix_position},
     {Field::revoke_end, Axis::revocation, Field::revoke_position},
     {Field::query_end, Axis::query_range, Field::query_start},
     {Field::key_end, Axis::key_range, Field::key_start},
     {Field::value_end, Axis::value_range, Field::value_start}}};

}  // namespace blockscope
