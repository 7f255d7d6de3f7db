// See config_keys.h. The names come from published config.json files and from the configuration
// classes of transformers 4 and 5, SDAR, LLaDA, Dream, LLaDA2, Fast-dLLM v2, DFlash, speculators.
#include "probe/checkpoint/config_keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

namespace blockscope {
namespace {

using nlohmann::json;

constexpr std::string_view kEverywhere = "";              // every model, no inner object
constexpr std::string_view kDraftKeys = "dflash_config";  // an inner object

// Any value changes nothing here, in any family.
constexpr std::string_view kIdle[] = {
    // Training alone: initialisation, dropout, losses, how the trainer splits and repeats the work.
    "initializer_range",
    "init_std",
    "init_fn",
    "init_device",
    "init_cutoff_factor",
    "attention_dropout",
    "residual_dropout",
    "embedding_dropout",
    "output_dropout",
    "hidden_dropout",
    "classifier_dropout",
    "router_aux_loss_coef",
    "router_z_loss_coef",
    "router_jitter_noise",
    "output_router_logits",
    "mtp_loss_scaling_factor",
    "fuse_cross_entropy",
    "fuse_linear_cross_entropy",
    "debug",
    "ep_size",
    "micro_forward",
    "skip_checkpoint",
    "use_deepep",
    "gradient_checkpointing",
    "num_anchors",
    "max_anchors",
    "loss_decay_gamma",
    // Which kernel computes and what it keeps, not what is computed.
    "attn_implementation",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_attn_implementation_internal",
    "_experts_implementation",
    "attention_backend",
    "use_flash_attention",
    "flash_attention",
    "use_cache",
    "precision",
    "torchscript",
    "use_bfloat16",
    // Windows that count only with use_sliding_window and layer_types, which are read.
    "sliding_window",
    "max_window_layers",
    // Counts only with a scaled RoPE, which reads it.
    "original_max_position_embeddings",
    // Defaults of generate(): the options of the command decide here.
    "max_length",
    "max_new_tokens",
    "min_length",
    "do_sample",
    "early_stopping",
    "num_beams",
    "num_beam_groups",
    "diversity_penalty",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "repetition_penalty",
    "length_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "num_return_sequences",
    "output_scores",
    "return_dict_in_generate",
    "remove_invalid_values",
    "exponential_decay_length_penalty",
    "bad_words_ids",
    "suppress_tokens",
    "begin_suppress_tokens",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "decoder_start_token_id",
    // Bookkeeping: names, versions, what other heads than the LM head would need.
    "_name_or_path",
    "name_or_path",
    "_commit_hash",
    "transformers_version",
    "auto_map",
    "tokenizer_class",
    "unsloth_version",
    "unsloth_fixed",
    "return_dict",
    "output_attentions",
    "output_hidden_states",
    "sep_token_id",
    "cls_token_id",
    "unk_token_id",
    "prefix",
    "finetuning_task",
    "task_specific_params",
    "problem_type",
    "id2label",
    "label2id",
    "num_labels",
    "tf_legacy_loss",
};

/// In this place the key changes nothing, or nothing with this value alone (JSON text).
struct PlacedKey {
  std::string_view place;
  std::string_view key;
  std::string_view neutral{};
};

constexpr PlacedKey kPlaced[] = {
    // What other models switch on or scale with, at the value that does neither.
    {kEverywhere, "is_decoder", "false"},
    {kEverywhere, "is_encoder_decoder", "false"},
    {kEverywhere, "add_cross_attention", "false"},
    {kEverywhere, "tie_encoder_decoder", "false"},
    {kEverywhere, "pruned_heads", "{}"},
    {kEverywhere, "chunk_size_feed_forward", "0"},
    {kEverywhere, "pretraining_tp", "1"},
    {kEverywhere, "use_mrope", "false"},
    {kEverywhere, "attention_bias", "false"},
    {kEverywhere, "qkv_bias", "false"},
    {kEverywhere, "attention_sinks", "false"},
    {kEverywhere, "use_attention_sinks", "false"},
    {kEverywhere, "embedding_multiplier", "1"},
    {kEverywhere, "residual_multiplier", "1"},
    {kEverywhere, "output_multiplier", "1"},
    {kEverywhere, "logits_scaling", "1"},
    {kEverywhere, "logit_scale", "1"},
    {kEverywhere, "shared_expert_intermediate_size", "0"},
    {kEverywhere, "num_nextn_predict_layers", "0"},
    {kEverywhere, "drop_tokens", "false"},
    {kEverywhere, "expert_choice", "false"},
    {kEverywhere, "use_relay", "false"},
    // The first two count only with alibi and attention_layer_norm, which are refused. The groups
    // only wrap layers for FSDP: weights saved in groups have other names and are refused for them.
    {"llada", "alibi_bias_max"},
    {"llada", "attention_layer_norm_with_affine"},
    {"llada", "block_group_size"},
    // A draft in speculators' layout names its target and its trainer. Of the rest the inner object
    // or the target decides; lm_head and embed_tokens are both demanded, whatever is said of tying.
    {"speculators", "speculators_config"},
    {"speculators", "speculators_version"},
    {"speculators", "proposal_speculative_tokens"},
    {"speculators", "has_no_defaults_at_init"},
    {"speculators", "tie_word_embeddings"},
    {"speculators", "dtype"},
    {"speculators", "torch_dtype"},
    {"speculators", "bos_token_id"},
    {"speculators", "eos_token_id"},
    {"speculators", "pad_token_id"},
    {"speculators", "sliding_window_non_causal", "false"},
    // The name of the mask token, whose id is read.
    {kDraftKeys, "mask_token"},
    {kDraftKeys, "causal", "false"},
    {kDraftKeys, "attention_mode", "\"gqa\""},
    {kDraftKeys, "use_qk_norm", "true"},
    {kDraftKeys, "sample_from_anchor", "false"},
    {"dflash", "is_causal", "false"},
    // Of the inner object; find_architecture has read them.
    {"dflash", "architectures"},
    {"dflash", "model_type"},
};

const PlacedKey* find_placed(std::string_view place, std::string_view key) {
  const auto* found =
      std::find_if(std::begin(kPlaced), std::end(kPlaced),
                   [&](const PlacedKey& row) { return row.place == place && row.key == key; });
  return found == std::end(kPlaced) ? nullptr : found;
}

}  // namespace

void refuse_unread_keys(const JsonObject& object, std::string_view place) {
  const bool inner = place == kDraftKeys;
  std::vector<std::string> unknown;
  for (const std::string& key : object.unread()) {
    if (!inner && std::find(std::begin(kIdle), std::end(kIdle), key) != std::end(kIdle)) continue;
    const PlacedKey* row = find_placed(place, key);
    if (row == nullptr && !inner) row = find_placed(kEverywhere, key);
    if (row == nullptr) {
      unknown.push_back(key);
    } else if (!row->neutral.empty() && object.raw().at(key) != json::parse(row->neutral)) {
      object.fail(key, fmt::format("{} or nothing", row->neutral),
                  "another value makes another model, which is not supported");
    }
  }
  if (unknown.empty()) return;
  const std::string first = unknown.front();
  unknown.erase(unknown.begin());
  object.fail(
      first, "no such key, because this version does not know what it changes",
      fmt::format("a key that is not honoured could change what the model computes{}. If you know "
                  "that it changes nothing, leave it out of a copy of the file",
                  unknown.empty() ? "" : fmt::format(" (also {})", fmt::join(unknown, ", "))));
}

}  // namespace blockscope
