// The transformer of all families (family_table.h), driven by ModelConfig: RMSNorm, QK-norm per
// head before RoPE, GQA, explicit head_dim, rotate-half RoPE of all or the first channels, SwiGLU
// or experts, tied or own LM head. ForwardSeams::attention decides what the queries attend to.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "probe/checkpoint/checkpoint.h"
#include "probe/checkpoint/model_config.h"
#include "probe/model/attention_layer.h"
#include "probe/model/feed_forward.h"
#include "probe/model/forward_seams.h"
#include "probe/model/grouped_conv.h"

namespace blockscope {

/// Weights by their Hugging Face name (`model.layers.0.self_attn.q_proj.weight`, ...). Names differ
/// from family to family (weight_names.h).
using WeightMap = std::map<std::string, at::Tensor>;

/// Memory for every tensor of expected_tensors(config). Tensors that are multiplied with the same
/// rows (queries, keys and values; gate and up) are adjacent in memory and can be one product.
WeightMap empty_weights(const ModelConfig& config, at::ScalarType dtype, at::Device device);

/// A checkpoint's tensor, on the CPU. If an adapter changes it, the sum W + scale * B A in float32,
/// else the mapping in its own dtype, which lives as long as the checkpoint. Throws CheckpointError
/// for adapters with numbers that are not finite.
at::Tensor adapted_weight(const Checkpoint& checkpoint, const std::string& name);

class BlockDiffusionModel {
 public:
  /// `weights` must hold every tensor of expected_tensors(config). They are used unchanged (dtype,
  /// device, requires_grad), so the trainer keeps its own leaf tensors.
  BlockDiffusionModel(ModelConfig config, WeightMap weights);

  /// Copies a checkpoint's weights, converted to `dtype`, to a device, one tensor after another.
  static BlockDiffusionModel load(const Checkpoint& checkpoint, at::ScalarType dtype,
                                  at::Device device = at::kCPU);

  /// Whether the model has its own embedding and LM head. A DFlash draft may borrow its target's.
  bool has_vocabulary() const { return embed_.defined(); }

  /// The same model for decoding, not for training: its linear layers are laid out for this CPU, or
  /// joined to fewer layers on a device (linear.h). The packed model has no weights(). On the CPU
  /// it keeps linear layers in the new form alone; only a tied LM head also stays as the embedding.
  BlockDiffusionModel packed() &&;

  /// tokens int64 [S, T], positions int64 [S, T] (absolute, from 0) -> hidden states after the
  /// final norm, [S, T, hidden_size], or only those of the rows that the seams need. Tokens and
  /// positions may always be on the host.
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& positions,
                     ForwardSeams& seams) const;

  /// tokens int64 [S, T] -> [S, T, hidden_size]. Like forward() and logits(), not available for a
  /// draft that borrows its target's vocabulary.
  at::Tensor embed(const at::Tensor& tokens) const;
  /// DiffusionGemma's embedding of a canvas: tokens int64 [S, T], and what the step before
  /// predicted for its positions, logits [S, T, vocab_size] over that step's temperature; undefined
  /// at the first step (transformers, `DiffusionGemmaSelfConditioning`).
  at::Tensor embed_canvas(const at::Tensor& tokens, const at::Tensor& before) const;
  /// forward() for rows that are embedded already.
  at::Tensor forward_embedded(at::Tensor hidden, const at::Tensor& positions,
                              ForwardSeams& seams) const;
  /// The rotations of queries and keys of a layer at these positions: [S, T] -> [S, 1, T, R].
  RotaryRows rotary_rows(const at::Tensor& positions, int64_t layer = 0) const;

  /// hidden [..., hidden_size], the sum after any layer -> what logits() takes. forward() does this
  /// after the last layer.
  at::Tensor final_norm(const at::Tensor& hidden) const { return norm_(hidden); }
  /// hidden [..., hidden_size] -> logits [..., vocab_size] in the weights' dtype; in float32 if the
  /// model has a soft cap.
  at::Tensor logits(const at::Tensor& hidden) const;
  /// Whether a row's logits do not depend, bit for bit, on the other rows of the call.
  bool logits_stand_alone() const { return lm_head_.matrix().defined(); }

  /// The same model with shared weights, and rotary embeddings for sequences of up to `length`
  /// positions (prompt and answer). Only `dynamic` RoPE scaling depends on the length. A newly
  /// built or loaded model is ready for max_position_embeddings.
  BlockDiffusionModel for_longest_sequence(int64_t length) const;

  /// The same model with shared weights, and a trained part for each projection of this map, by the
  /// name of its weight. Not for decoding.
  BlockDiffusionModel with_low_rank(const std::map<std::string, LowRank>& parts) const;

  /// The projections of layer `index`.
  const AttentionLayer& attention_layer(int64_t index) const {
    return layers_[static_cast<size_t>(index)].attention;
  }

  const ModelConfig& config() const { return config_; }
  const WeightMap& weights() const { return weights_; }  // empty when packed
  /// Whether the host waits in every layer with experts for the router's choice.
  bool waits_for_router() const;
  at::ScalarType dtype() const;
  at::Device device() const;
  /// The memory of the weights. A packed tied LM head counts twice.
  int64_t weight_bytes() const { return weight_bytes_; }

 private:
  void scale_rope(int64_t longest_sequence);

  struct Layer {
    RmsNorm input_norm, post_norm;  // over hidden_size
    AttentionLayer attention;
    FeedForward feed_forward;
    GroupedConv attention_conv, mlp_conv;  // of a DFlash 2 draft; of others, none
    RmsNorm attention_norm{};              // of the attention's output; may be undefined
    at::Tensor scalar{}, canvas_scalar{};  // [1] factors of the layer's output; may be undefined
    size_t rope = 0;                       // in ropes_
  };
  struct Rope {
    RopeConfig config;
    int64_t head_dim = 0;
    at::Tensor inverse_frequencies{};  // [rotary channels / 2] float32
    double attention_factor = 1.0;     // multiplies cos and sin (yarn)
  };
  struct SelfConditioning {
    RmsNorm input_norm, output_norm;
    GatedMlp mlp;
  };

  at::Tensor weight(const std::string& name) const;
  RmsNorm norm_of(const std::string& name) const;
  RmsNorm plain_norm(int64_t width) const;  // without a weight
  AttentionLayer attention_of(int64_t index) const;
  GroupedConv conv_of(const std::string& name) const;
  GatedMlp mlp_of(const std::string& name) const;
  FeedForward feed_forward_of(int64_t index) const;
  void add_gemma_parts(int64_t index, Layer& layer) const;
  RotaryRows rotation(const Rope& rope, const at::Tensor& positions) const;
  at::Tensor embed_scale() const;

  ModelConfig config_;
  WeightMap weights_;
  int64_t weight_bytes_ = 0;
  std::vector<Layer> layers_;
  at::Tensor embed_;                    // [vocab_size, hidden_size]
  RmsNorm norm_;                        // over hidden_size
  Linear lm_head_;                      // [vocab_size, hidden_size], the embedding when tied
  SelfConditioning self_conditioning_;  // of DiffusionGemma only
  std::vector<Rope> ropes_;             // those that differ
};

}  // namespace blockscope
