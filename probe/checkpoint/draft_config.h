// What a draft's config.json says in addition to the keys of its layers. Read by
// dflash_family.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace blockscope {

/// What a DFlash 2 draft has in addition (`dflash/model.py:DFlash2DraftModel`).
struct Dflash2Config {
  // Convolutions around the attention and the MLP of every layer (grouped_conv.h).
  std::int64_t conv_taps = 0;   // a row and the rows before it in the block, at most block_size
  std::int64_t conv_group = 0;  // neighbouring channels with one dynamic coefficient
  // The selector, which chooses a path through the best tokens of each slot
  // (candidate_selector.h).
  std::int64_t selector_rank = 0;
  std::int64_t candidates = 0;  // the best tokens of a slot, at most vocab_size
};

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
  bool from_anchor = false;  // row i predicts block position i + 1, so the first row predicts, too
  double embedding_scale = 1.0;    // factor of the block's embeddings
  double output_multiplier = 1.0;  // factor of the logits, above 0
  double soft_cap = 0.0;           // logits x become soft_cap * tanh(x / soft_cap); 0: unchanged
  std::optional<Dflash2Config> second;  // DFlash 2
  std::vector<bool> causal_layers;  // [layers] their rows see the block up to themselves; or empty

  bool causal(std::int64_t layer) const {
    return !causal_layers.empty() && causal_layers[static_cast<std::size_t>(layer)];
  }

  /// The positions of its longest round: the certain token and all that it drafts.
  std::int64_t longest_round() const { return block_size + (from_anchor ? 1 : 0); }
  /// Whether the checkpoint has d2t and t2d tensors.
  bool maps_vocabulary(std::int64_t vocab_size) const { return draft_vocab_size < vocab_size; }
};

/// The default of `target_layers` for a draft of `num_layers`: evenly spaced, from layer 1 to the
/// third from the end (`build_target_layer_ids`).
std::vector<std::int64_t> default_target_layers(std::int64_t num_target_layers,
                                                std::int64_t num_layers);

}  // namespace blockscope
