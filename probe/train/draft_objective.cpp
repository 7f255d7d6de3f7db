#include "probe/train/draft_objective.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <system_error>
#include <utility>

#include "decode_record/base/error.h"
#include "probe/checkpoint/family_table.h"
#include "probe/draft/hidden_taps.h"
#include "probe/train/masked_attention.h"

namespace blockscope {
namespace {

class TargetRows final : public ForwardSeams {
 public:
  TargetRows(MaskedAttention& attention, HiddenTaps& taps) : attention_(attention), taps_(taps) {}
  at::Tensor attention(const AttentionInput& input) override { return attention_.attention(input); }
  void before_layer(int64_t layer, const at::Tensor& hidden) override {
    taps_.before_layer(layer, hidden);
  }

 private:
  MaskedAttention& attention_;
  HiddenTaps& taps_;
};

/// Attention of a draft's layers: the keys and values of the context's features come before those
/// of the blocks.
class DraftRows final : public ForwardSeams {
 public:
  DraftRows(MaskedAttention& attention, at::Tensor features, RotaryRows rotary)
      : attention_(attention), features_(std::move(features)), rotary_(std::move(rotary)) {}

  at::Tensor attention_block(int64_t layer, const AttentionLayer& weights, const at::Tensor& x,
                             const RotaryRows& rotary) override {
    const auto [q, k, v] = weights.project(x, rotary);
    const at::Tensor keys = at::cat({weights.key(features_, rotary_), k}, 2);
    const at::Tensor values = at::cat({weights.value(features_), v}, 2);
    return weights.output(attention({layer, q, keys, values, weights.scale()}));
  }
  at::Tensor attention(const AttentionInput& input) override { return attention_.attention(input); }

 private:
  MaskedAttention& attention_;
  at::Tensor features_;  // [S, T, hidden_size]
  RotaryRows rotary_;    // of the context's positions
};

void check_target(const std::filesystem::path& folder, const ModelConfig& of) {
  if (of.model_type == family_named("dflash").training.target &&
      of.rope.type == RopeType::kDefault) {
    return;
  }
  throw UsageError(fmt::format(
      "--target: {}: expected a dense qwen3 that decodes token by token, without "
      "rope_scaling, got model_type {}{}. HINT: models/needle/backbone is one",
      folder.string(), of.model_type, of.gemma ? ", which decodes canvases of random tokens" : ""));
}

}  // namespace

void check_draft_target(const std::filesystem::path& folder) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    throw UsageError(
        fmt::format("--target: {}: no such folder. HINT: give the folder that holds config.json",
                    folder.string()));
  }
  check_target(folder, load_model_config(folder));
}

ModelConfig draft_config_for(const Checkpoint& target, const ModelConfig& shapes,
                             std::int64_t block_size, std::int64_t mask_token_id,
                             const std::vector<std::int64_t>& target_layers) {
  const ModelConfig& of = target.config();
  check_target(target.folder(), of);
  ModelConfig config = shapes;
  set_family(family_named("dflash"), config);
  config.hidden_size = of.hidden_size;
  config.vocab_size = of.vocab_size;
  config.max_position_embeddings = of.max_position_embeddings;
  config.rms_norm_eps = of.rms_norm_eps;
  config.rope = of.rope;
  config.tie_word_embeddings = of.tie_word_embeddings;
  config.stop_token_ids = of.stop_token_ids;
  DraftConfig draft;
  draft.block_size = block_size;
  draft.mask_token_id = mask_token_id;
  draft.num_target_layers = of.num_layers;
  draft.draft_vocab_size = of.vocab_size;
  draft.target_layers = target_layers.empty()
                            ? default_target_layers(of.num_layers, config.num_layers)
                            : target_layers;
  for (const std::int64_t layer : draft.target_layers) {
    if (layer < 0 || layer >= of.num_layers) {
      throw UsageError(
          fmt::format("--target-layers: expected layers of the target, 0 to {}, got {}",
                      of.num_layers - 1, layer));
    }
  }
  draft.target_digest = target.digest();
  config.draft = draft;
  return config;
}

DraftObjective::DraftObjective(const Checkpoint& target, at::Device device)
    : target_(BlockDiffusionModel::load(target, at::kFloat, device)) {}

at::Tensor DraftObjective::forward(const DraftModel& draft, const TrainingBatch& batch,
                                   at::ScalarType attention) const {
  const at::Device device = target_.device();
  const TrainingBatch& context = *batch.context;
  at::Tensor taps;
  at::Tensor embedded;
  const at::Tensor places = context.positions.to(device);
  {
    const at::NoGradGuard no_grad;
    HiddenTaps kept(draft.draft().target_layers, target_.config().num_layers);
    MaskedAttention masked(context.mask.to(device), context.chunks, attention);
    TargetRows seams(masked, kept);
    taps = kept.side_by_side(target_.forward(context.tokens.to(device), places, seams));
    embedded = target_.embed(batch.tokens.to(device));
  }
  MaskedAttention masked(batch.mask.to(device), batch.chunks, attention);
  DraftRows seams(masked, draft.context_features(taps), draft.body().rotary_rows(places));
  const at::Tensor hidden =
      draft.body().forward_embedded(embedded, batch.positions.to(device), seams);
  return target_.logits(hidden.flatten(0, 1).index_select(0, batch.rows.to(device)));
}

}  // namespace blockscope
