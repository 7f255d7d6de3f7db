// See config_keys.h. The names come from published config.json files and from the configuration
// classes of transformers 4 and 5, SDAR, LLaDA, Dream, LLaDA2, Fast-dLLM v2, DFlash, speculators.
#include "probe/checkpoint/config_keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "probe/checkpoint/config_limits.h"
#include "probe/checkpoint/family_table.h"

namespace blockscope {
namespace {

using nlohmann::json;

// Keys that change nothing here, in any family and with any value.
constexpr std::string_view kIdle[] = {
    // For training only: initialisation, dropout, losses, how the trainer splits and repeats work.
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
    // Which kernel is used and what it keeps, not what is computed.
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
    // Used only with use_sliding_window and layer_types, which are read.
    "sliding_window",
    "max_window_layers",
    // Used only with a scaled RoPE, which reads it.
    "original_max_position_embeddings",
    // Defaults of generate(); here the options of the command decide.
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
    // Names, versions, and settings of other heads than the LM head.
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

// Keys that change nothing in any family.
constexpr NeutralKey kNeutral[] = {
    // Switches and factors of other models, at the value that changes nothing.
    {"is_decoder", "false"},
    {"is_encoder_decoder", "false"},
    {"add_cross_attention", "false"},
    {"tie_encoder_decoder", "false"},
    {"pruned_heads", "{}"},
    {"chunk_size_feed_forward", "0"},
    {"pretraining_tp", "1"},
    {"use_mrope", "false"},
    {"attention_bias", "false"},
    {"qkv_bias", "false"},
    {"attention_sinks", "false"},
    {"use_attention_sinks", "false"},
    {"embedding_multiplier", "1"},
    {"residual_multiplier", "1"},
    {"output_multiplier", "1"},
    {"logits_scaling", "1"},
    {"logit_scale", "1"},
    {"shared_expert_intermediate_size", "0"},
    {"num_nextn_predict_layers", "0"},
    {"drop_tokens", "false"},
    {"expert_choice", "false"},
    {"use_relay", "false"},
};

const NeutralKey* find_key(std::span<const NeutralKey> keys, std::string_view key) {
  const auto found = std::ranges::find(keys, key, &NeutralKey::key);
  return found == keys.end() ? nullptr : &*found;
}

void refuse_unread(const JsonObject& object, std::span<const NeutralKey> own, bool inner) {
  std::vector<std::string> unknown;
  for (const std::string& key : object.unread()) {
    if (!inner && std::find(std::begin(kIdle), std::end(kIdle), key) != std::end(kIdle)) continue;
    const NeutralKey* row = find_key(own, key);
    if (row == nullptr && !inner) row = find_key(kNeutral, key);
    if (row == nullptr) {
      unknown.push_back(key);
    } else if (!row->value.empty() && object.raw().at(key) != json::parse(row->value)) {
      object.fail(key, fmt::format("{} or nothing", row->value),
                  "with another value it is a different model, which is not supported");
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

}  // namespace

void refuse_unread_keys(const JsonObject& object, std::span<const NeutralKey> own) {
  refuse_unread(object, own, false);
}

void refuse_unread_inner_keys(const JsonObject& object, std::span<const NeutralKey> own) {
  refuse_unread(object, own, true);
}

void refuse_unsupported(const JsonObject& file, const Family& family, std::int64_t num_layers) {
  if (!family.layer_kinds && file.optional_boolean("use_sliding_window").value_or(false)) {
    file.fail("use_sliding_window", "false", "sliding-window attention is not supported");
  }
  if (!family.layer_kinds && file.has("layer_types")) {
    const json& types = file.raw().at("layer_types");
    const bool full = types.is_array() && types.size() == static_cast<std::size_t>(num_layers) &&
                      std::all_of(types.begin(), types.end(), [](const json& t) {
                        return t.is_string() && t == "full_attention";
                      });
    if (!full) {
      file.fail("layer_types", fmt::format("\"full_attention\" for every layer ({})", num_layers),
                "other layer types are not supported");
    }
  }
  if (family.keys.contains("hidden_act")) {
    file.pass_over({"hidden_act"});  // the family reads its own key
  } else if (const auto activation = file.optional_string("hidden_act").value_or("silu");
             activation != "silu") {
    file.fail("hidden_act", "\"silu\"");
  }
  if (file.optional_boolean("mlp_bias").value_or(false)) file.fail("mlp_bias", "false");
  if (file.optional_boolean("use_qk_norm").value_or(family.qk_norm) != family.qk_norm) {
    file.fail("use_qk_norm", fmt::format("{}, as in every model of the family", family.qk_norm));
  }
  if (file.has("quantization_config")) {
    file.fail("quantization_config", "nothing", "quantised checkpoints are not supported");
  }
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (family.experts && std::string_view(key) != "n_routed_experts") continue;
    if (file.optional_integer(key, 0, kMaxExperts).value_or(0) > 0) {
      file.fail(key, "nothing", "mixture-of-experts layers of this family are not supported");
    }
  }
}

}  // namespace blockscope
