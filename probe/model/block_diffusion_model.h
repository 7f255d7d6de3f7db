// The decoder of all families (family_table.h), driven by ModelConfig: RMSNorm, QK-norm per head
// before RoPE, GQA, explicit head_dim, rotate-half RoPE of all or the first channels, SwiGLU or
// experts, tied or own LM head. What the queries may attend to is not its business: that is
// ForwardSeams::attention.
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

namespace blockscope {

/// Weights by their Hugging Face name (`model.layers.0.self_attn.q_proj.weight`, ...), which differ
/// from family to family (weight_names.h).
using WeightMap = std::map<std::string, at::Tensor>;

/// Memory for every tensor of expected_tensors(config). Those that are multiplied with the same
/// rows (queries, keys and values; gate and up) lie behind one another, so that they can be one
/// product.
WeightMap empty_weights(const ModelConfig& config, at::ScalarType dtype, at::Device device);

class BlockDiffusionModel {
 public:
  /// `weights` must hold every tensor of expected_tensors(config); they are used as they are
  /// (dtype, device, requires_grad), so the trainer keeps its own leaf tensors.
  BlockDiffusionModel(ModelConfig config, WeightMap weights);

  /// Copies a checkpoint's weights, converted to `dtype`, to a device, one tensor after another.
  static BlockDiffusionModel load(const Checkpoint& checkpoint, at::ScalarType dtype,
                                  at::Device device = at::kCPU);

  /// Whether it has an embedding and an LM head of its own; a DFlash draft may borrow its target's.
  bool has_vocabulary() const { return embed_.defined(); }

  /// The same model with its linear layers laid out for this CPU, or on a device joined to fewer of
  /// them (linear.h): for decoding, not for training. It has no weights() any more; on the CPU
  /// those of linear layers are kept in the new form alone, but a tied LM head, whose embedding is
  /// needed as it was.
  BlockDiffusionModel packed() &&;

  /// tokens int64 [S, T], positions int64 [S, T] (absolute, from 0) -> final-normed hidden states
  /// [S, T, hidden_size], or of the rows that the seams need alone. Tokens and positions may be on
  /// the host, whatever the model's device.
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& positions,
                     ForwardSeams& seams) const;

  /// tokens int64 [S, T] -> [S, T, hidden_size]. Not of a draft that borrows its target's
  /// vocabulary, as forward() and logits() are not.
  at::Tensor embed(const at::Tensor& tokens) const;
  /// forward() of rows that are embedded already.
  at::Tensor forward_embedded(at::Tensor hidden, const at::Tensor& positions,
                              ForwardSeams& seams) const;
  /// The rows that the model turns queries and keys of these positions by: [S, T] -> [S, 1, T, R].
  RotaryRows rotary_rows(const at::Tensor& positions) const;

  /// hidden [..., hidden_size] -> logits [..., vocab_size] in the weights' dtype.
  at::Tensor logits(const at::Tensor& hidden) const;
  /// Whether a row's logits are bit for bit the same whatever other rows are asked for with it.
  bool logits_stand_alone() const { return lm_head_.matrix().defined(); }

  /// The same model (the weights are shared) with rotary embeddings for sequences of up to `length`
  /// positions, prompt and generated; only `dynamic` RoPE scaling depends on it. A model that was
  /// just built or loaded is ready for max_position_embeddings.
  BlockDiffusionModel for_longest_sequence(int64_t length) const;

  /// What layer `index` projects with.
  const AttentionLayer& attention_layer(int64_t index) const {
    return layers_[static_cast<size_t>(index)].attention;
  }

  const ModelConfig& config() const { return config_; }
  const WeightMap& weights() const { return weights_; }  // empty when packed
  at::ScalarType dtype() const;
  at::Device device() const;
  /// What the weights take in memory, those of a tied LM head that was packed twice.
  int64_t weight_bytes() const { return weight_bytes_; }

 private:
  void scale_rope(int64_t longest_sequence);

  struct Layer {
    RmsNorm input_norm, post_norm;  // over hidden_size
    AttentionLayer attention;
    FeedForward feed_forward;
  };

  at::Tensor weight(const std::string& name) const;
  RmsNorm norm_of(const std::string& name) const;
  AttentionLayer attention_of(const std::string& prefix) const;

  ModelConfig config_;
  WeightMap weights_;
  int64_t weight_bytes_ = 0;
  std::vector<Layer> layers_;
  at::Tensor embed_;                    // [vocab_size, hidden_size]
  RmsNorm norm_;                        // over hidden_size
  Linear lm_head_;                      // [vocab_size, hidden_size], the embedding when tied
  at::Tensor inverse_frequencies_;      // [rotary channels / 2] float32
  double rope_attention_factor_ = 1.0;  // multiplies cos and sin (yarn)
};

}  // namespace blockscope
