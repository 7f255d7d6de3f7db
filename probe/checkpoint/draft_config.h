// What a draft's config.json says in addition to the keys of its layers. dflash_family.cpp reads
// it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace blockscope {

struct DraftConfig {
  std::int64_t block_size = 0;     // one certain token and block_size - 1 drafted ones
  std::int64_t mask_token_id = 0;  // of the target's vocabulary
  // Whose outputs are the context features, in the order of fc's columns: layers of the target,
  // from 0.
  std::vector<std::int64_t> target_layers;
  std::int64_t num_target_layers = 0;  // of the target it was trained for; 0: the file doesn't say
  bool own_vocabulary = false;         // embed_tokens and lm_head of its own; else the target's
  std::int64_t draft_vocab_size = 0;   // rows of its lm_head; less than vocab_size: d2t maps them
  bool speculators = false;            // the layout
  // Checkpoint::digest() of the target it was trained for; empty: the file doesn't say. A key of
  // our own, `dflash_config.target_digest`.
  std::string target_digest;

  /// d2t and t2d tensors are there.
  bool maps_vocabulary(std::int64_t vocab_size) const { return draft_vocab_size < vocab_size; }
};

/// The layers of a target that a draft of `num_layers` reads where nothing says which: evenly from
/// layer 1 to the third from the end (`build_target_layer_ids`).
std::vector<std::int64_t> default_target_layers(std::int64_t num_target_layers,
                                                std::int64_t num_layers);

}  // namespace blockscope
