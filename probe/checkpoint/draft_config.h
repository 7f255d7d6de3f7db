// What a draft's config.json says in addition to the keys of its layers. Read by
// dflash_family.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace blockscope {

struct DraftConfig {
  std::int64_t block_size = 0;     // one certain token and block_size - 1 drafted ones
  std::int64_t mask_token_id = 0;  // in the target's vocabulary
  // The target's layers (from 0) whose outputs are the context features, in the order of fc's
  // columns.
  std::vector<std::int64_t> target_layers;
  std::int64_t num_target_layers =
      0;                              // layers of the target it was trained for; 0: not in the file
  bool own_vocabulary = false;        // has its own embed_tokens and lm_head; else the target's
  std::int64_t draft_vocab_size = 0;  // rows of its lm_head; less than vocab_size: d2t maps them
  bool speculators = false;           // the file has speculators' layout, else z-lab's
  // Checkpoint::digest() of the target it was trained for; empty: not in the file. The key is our
  // own, `dflash_config.target_digest`.
  std::string target_digest;

  /// Whether the checkpoint has d2t and t2d tensors.
  bool maps_vocabulary(std::int64_t vocab_size) const { return draft_vocab_size < vocab_size; }
};

/// The default of `target_layers` for a draft of `num_layers`: evenly spaced, from layer 1 to the
/// third from the end (`build_target_layer_ids`).
std::vector<std::int64_t> default_target_layers(std::int64_t num_target_layers,
                                                std::int64_t num_layers);

}  // namespace blockscope
