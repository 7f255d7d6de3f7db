// The one table of model families: which are run, which are known and refused (with the reason),
// and where each keeps its mask id and block length. Values: SDAR's config and SGLang's table
// {SDARForCausalLM: block 4, mask 151669}; key names of the other families from their own code.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "probe/checkpoint/json_object.h"

namespace blockscope {

struct ArchitectureFamily {
  std::string_view model_type;                  // as in config.json
  std::vector<std::string_view> architectures;  // accepted class names; the first is the default
  std::string_view refusal;                     // why it is not run; empty: supported
  bool autoregressive = false;                  // causal unless the command line gives mask and B
  bool bidirectional = false;    // sees the whole sequence; blocks count from the prompt's end
  std::int64_t logit_shift = 0;  // 1: the logits of position p predict position p + 1
  bool qk_norm = false;
  bool qkv_bias = false;                            // always on q, k and v, never on o
  bool draft = false;                               // runs beside a target (draft_config.h)
  bool experts = false;                             // layers may hold experts (moe_config.h)
  bool partial_rotary = false;                      // partial_rotary_factor of a head turns
  std::int64_t default_head_dim = 0;                // of the config class, when the key is absent;
                                                    // 0: hidden_size / num_attention_heads
  std::vector<std::string_view> mask_keys;          // config.json keys of the mask id
  std::vector<std::string_view> block_length_keys;  // config.json keys of the block length
  std::string_view mask_token;                      // the mask token's text in the tokenizer
  std::optional<std::int64_t> default_mask_token_id;
  std::optional<std::int64_t> default_block_length;
};

const std::vector<ArchitectureFamily>& architecture_table();

/// The family of a config.json, by `model_type` and `architectures`, which must agree. Throws
/// CheckpointError for a family that is known and refused, and for an unknown one, listing what is
/// supported.
const ArchitectureFamily& find_architecture(const JsonObject& config);

}  // namespace blockscope
