#include "probe/draft/draft_model.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "decode_record/base/error.h"
#include "kernels/row_ops.h"

namespace blockscope {
namespace {

/// d2t holds offsets: the target's id is the draft's id plus its entry (speculators
/// `DraftVocabMixin`).
at::Tensor read_target_ids(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  const int64_t size = config.draft->draft_vocab_size;
  if (!config.draft->maps_vocabulary(config.vocab_size)) return {};
  const TensorInfo& info = checkpoint.at("d2t");
  const std::string where = checkpoint.folder().string() + ": d2t";
  if (info.dtype != TensorDtype::kI64 || info.shape != std::vector<int64_t>{size}) {
    throw CheckpointError(fmt::format(
        "{}: expected I64 [{}], one entry for each token of the draft's vocabulary, got {} {}",
        where, size, tensor_dtype_name(info.dtype), shape_text(info.shape)));
  }
  at::Tensor ids = at::empty({size}, at::kLong);
  auto* id = ids.mutable_data_ptr<int64_t>();
  std::memcpy(id, info.data, static_cast<size_t>(info.size));
  std::vector<bool> taken(static_cast<size_t>(config.vocab_size));
  for (int64_t i = 0; i < size; ++i) {
    const bool inside = id[i] >= -i && id[i] < config.vocab_size - i;
    id[i] += inside ? i : 0;
    if (!inside || taken[static_cast<size_t>(id[i])]) {
      throw CheckpointError(fmt::format(
          "{}: entry {}: expected an offset to a token below {} that no other entry gives, got {}. "
          "HINT: fetch the draft again",
          where, i, config.vocab_size, inside ? id[i] - i : id[i]));
    }
    taken[static_cast<size_t>(id[i])] = true;
  }
  return ids;
}

CandidateSelector selector_of(const BlockDiffusionModel& body) {
  if (!body.config().draft->second) return {};
  const auto part = [&](const std::string& name) {
    return body.weights().at("candidate_selector." + name);
  };
  return {part("predecessor_codebook"), part("successor_codebook"),
          part("hidden_projection.weight")};
}

}  // namespace

DraftModel::DraftModel(BlockDiffusionModel body, Linear fc, RmsNorm hidden_norm,
                       CandidateSelector selector, at::Tensor target_ids)
    : body_(std::move(body)),
      fc_(std::move(fc)),
      hidden_norm_(std::move(hidden_norm)),
      selector_(std::move(selector)),
      target_ids_(std::move(target_ids)) {}

DraftModel::DraftModel(BlockDiffusionModel body)
    : body_(std::move(body)),
      fc_(body_.weights().at("fc.weight")),
      hidden_norm_{body_.weights().at("hidden_norm.weight"), body_.config().rms_norm_eps, false},
      selector_(selector_of(body_)) {}

DraftModel DraftModel::load(const Checkpoint& checkpoint, at::ScalarType dtype, at::Device device) {
  DraftModel model(BlockDiffusionModel::load(checkpoint, dtype, device));
  model.target_ids_ = read_target_ids(checkpoint);
  return model;
}

DraftModel DraftModel::packed() && {
  fc_.pack();
  return {std::move(body_).packed(), std::move(fc_), std::move(hidden_norm_), std::move(selector_),
          std::move(target_ids_)};
}

DraftModel DraftModel::for_longest_sequence(int64_t length) const {
  return {body_.for_longest_sequence(length), fc_, hidden_norm_, selector_, target_ids_};
}

void DraftModel::check_target(const ModelConfig& target, const std::string& digest) const {
  const auto refuse = [](const std::string& what, int64_t expected, int64_t got) {
    throw CheckpointError(fmt::format(
        "the draft was made for a target of {} {}, got a target of {}. HINT: the draft's page "
        "names its target",
        what, expected, got));
  };
  const ModelConfig& own = config();
  if (own.hidden_size != target.hidden_size) {
    refuse("hidden_size", own.hidden_size, target.hidden_size);
  }
  if (own.vocab_size != target.vocab_size) {
    refuse("vocab_size", own.vocab_size, target.vocab_size);
  }
  if (draft().num_target_layers > 0 && draft().num_target_layers != target.num_layers) {
    refuse("num_hidden_layers", draft().num_target_layers, target.num_layers);
  }
  for (const int64_t layer : draft().target_layers) {
    if (layer >= target.num_layers) {
      throw CheckpointError(fmt::format(
          "the draft reads the hidden states after layer {}, but the target's last is {}. "
          "HINT: the draft's page names its target",
          layer, target.num_layers - 1));
    }
  }
  if (!draft().target_digest.empty() && draft().target_digest != digest) {
    throw CheckpointError(fmt::format(
        "the draft was trained for a target with the digest {}, got a target with {}. HINT: "
        "remove target_digest from the draft's config.json to run it anyway: answers stay "
        "the target's own, but fewer drafts are accepted",
        draft().target_digest, digest));
  }
}

at::Tensor DraftModel::context_features(const at::Tensor& taps) const {
  return hidden_norm_(fc_(taps));
}

at::Tensor DraftModel::embed(const at::Tensor& tokens, const BlockDiffusionModel& target) const {
  const at::Tensor rows = body_.has_vocabulary() ? body_.embed(tokens) : target.embed(tokens);
  return draft().embedding_scale == 1.0 ? rows : rows * draft().embedding_scale;
}

DraftedTokens DraftModel::choose(const at::Tensor& hidden, const at::Tensor& certain,
                                 const BlockDiffusionModel& target) const {
  const int64_t first = draft().from_anchor ? 0 : 1;
  const at::Tensor slots = hidden.narrow(1, first, hidden.size(1) - first);
  DraftedTokens drafted;
  drafted.head = body_.has_vocabulary() ? body_.logits(slots) : target.logits(slots);
  const at::Tensor rows = drafted.head.flatten(0, 1);
  if (selector_.defined()) {
    const int64_t count = draft().second->candidates;
    const auto by_slot = [&](const at::Tensor& of_rows) {
      return of_rows.view({slots.size(0), slots.size(1), count});
    };
    const BestCandidates best = best_candidates(rows, count);
    drafted.path =
        selector_.walk(slots, {by_slot(best.token), scaled(by_slot(best.logit))}, certain);
    const auto* token = drafted.path->token.const_data_ptr<int64_t>();
    for (size_t slot = 0; slot < drafted.path->chosen.size(); ++slot) {
      drafted.token.push_back(
          token[static_cast<int64_t>(slot) * count + drafted.path->chosen[slot]]);
    }
    return drafted;
  }
  BestTokens best = best_tokens(scaled(rows));
  drafted.token = std::move(best.token);
  drafted.confidence = std::move(best.probability);
  if (target_ids_.defined()) {
    const auto* ids = target_ids_.const_data_ptr<int64_t>();
    for (int64_t& id : drafted.token) id = ids[id];
  }
  return drafted;
}

at::Tensor DraftModel::scaled(const at::Tensor& head) const {
  const double factor = draft().output_multiplier;
  const double cap = draft().soft_cap;
  if (factor == 1.0 && cap == 0.0) return head;
  at::Tensor logits = head.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  if (cap == 0.0) return logits.mul_(factor);
  return logits.mul_(factor / cap).tanh_().mul_(cap);
}

}  // namespace blockscope
