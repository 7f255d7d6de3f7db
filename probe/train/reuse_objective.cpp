#include "probe/train/reuse_objective.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "probe/train/masked_attention.h"

namespace blockscope {
namespace {

struct KeysValues {
  at::Tensor k, v;  // [S, K, C, D]
};

/// Computes true tokens and keeps their keys and values. Nothing after the last layer's is needed.
class PrefixRows final : public ForwardSeams {
 public:
  PrefixRows(const TrainingBatch& batch, const BlockDiffusionModel& model)
      : attention_(batch.mask.to(model.device()), batch.chunks, model.dtype()),
        last_(model.config().num_layers - 1) {}

  std::optional<at::Tensor> needed_rows() const override { return at::empty({0}, at::kLong); }
  at::Tensor attention_block(std::int64_t layer, const AttentionLayer& weights, const at::Tensor& x,
                             const RotaryRows& rotary) override {
    if (layer < last_) return ForwardSeams::attention_block(layer, weights, x, rotary);
    kept.push_back({weights.key(x, rotary), weights.value(x)});
    return {};
  }
  at::Tensor attention(const AttentionInput& input) override {
    kept.push_back({input.k, input.v});
    return attention_.attention(input);
  }

  std::vector<KeysValues> kept;  // by layer

 private:
  MaskedAttention attention_;
  std::int64_t last_;
};

std::vector<KeysValues> prefix_of(const BlockDiffusionModel& model, const TrainingBatch& batch) {
  const at::NoGradGuard no_grad;
  PrefixRows rows(batch, model);
  model.forward(batch.tokens.to(model.device()), batch.positions.to(model.device()), rows);
  return std::move(rows.kept);
}

/// Which true tokens the probes see, for the query heads of one KV head.
struct ProbeMasks {
  ProbeMasks(const ReuseBatch& batch, const BlockDiffusionModel& model)
      : chunks(batch.chunks), block_length(batch.block_length) {
    const std::int64_t group = model.config().num_heads / model.config().num_kv_heads;
    for (const RowChunk& chunk : chunks) {
      masks.push_back(batch.mask.narrow(2, chunk.begin, chunk.end - chunk.begin)
                          .narrow(3, 0, chunk.shared)
                          .to(model.device())
                          .repeat({1, 1, group, 1}));
    }
  }

  std::vector<RowChunk> chunks;
  std::vector<at::Tensor> masks;  // of every chunk: [S, 1, group * rows, shared]
  std::int64_t block_length;
};

/// The output of attention over some keys, and the log of the sum of its exponentials.
struct Pair {
  at::Tensor out;  // [S, H, T, D]
  at::Tensor lse;  // [S, H, T]
};

/// What the student keeps from step 1: one pair a layer.
using Pairs = std::vector<Pair>;

/// scores [..., T, C], values [..., C, D] -> out [..., T, D], lse [..., T]. Overwrites the scores:
/// they are most of what a step writes to memory, and no gradient needs them.
Pair attend(at::Tensor scores, const at::Tensor& values) {
  // The maximum is a constant: neither result depends on it.
  const at::Tensor most = scores.detach().amax(-1, true);
  const at::Tensor weights = scores.sub_(most).exp_();
  const at::Tensor sum = weights.sum(-1, true);
  return {weights.matmul(values) / sum, (most + sum.log()).squeeze(-1)};
}

/// Attention of the probes: to the true tokens before them and to themselves.
class ProbeRows final : public ForwardSeams {
 public:
  /// `kept`: use these pairs instead of the true tokens; null: compute exactly.
  ProbeRows(const std::vector<KeysValues>& prefix, const ProbeMasks& masks, const Pairs* kept)
      : prefix_(prefix), masks_(masks), kept_(kept) {}

  at::Tensor attention(const AttentionInput& input) override {
    // The pair's sums of exponentials need float32.
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const at::Tensor q = input.q.to(at::kFloat) * input.scale;
    Pair outside = kept_ != nullptr ? (*kept_)[static_cast<std::size_t>(input.layer)]
                                    : external(input.layer, q);
    const Pair inside = internal(q, input.k.to(at::kFloat), input.v.to(at::kFloat));
    const at::Tensor share = (outside.lse - inside.lse).sigmoid().unsqueeze(-1);
    const at::Tensor z = inside.out + (outside.out - inside.out) * share;
    if (kept_ == nullptr) pairs.push_back(std::move(outside));
    return z.to(input.q.scalar_type());
  }

  Pairs pairs;  // of the layers of an exact pass

 private:
  /// Attention to the true tokens. Query heads of one KV head are rows of one product.
  Pair external(std::int64_t layer, const at::Tensor& q) const {
    const KeysValues& prefix = prefix_[static_cast<std::size_t>(layer)];
    const at::Tensor keys = prefix.k.to(at::kFloat);
    const at::Tensor values = prefix.v.to(at::kFloat);
    const std::int64_t sequences = q.size(0), heads = q.size(1), dim = q.size(3);
    const std::int64_t kv_heads = keys.size(1), group = heads / kv_heads;
    std::vector<at::Tensor> outs;
    std::vector<at::Tensor> sums;
    for (std::size_t i = 0; i < masks_.chunks.size(); ++i) {
      const RowChunk& chunk = masks_.chunks[i];
      const std::int64_t rows = chunk.end - chunk.begin;
      const at::Tensor own =
          q.narrow(2, chunk.begin, rows).reshape({sequences, kv_heads, group * rows, dim});
      at::Tensor scores = own.matmul(keys.narrow(2, 0, chunk.shared).transpose(2, 3));
      const Pair part = attend(scores.add_(masks_.masks[i]), values.narrow(2, 0, chunk.shared));
      outs.push_back(part.out.view({sequences, heads, rows, dim}));
      sums.push_back(part.lse.view({sequences, heads, rows}));
    }
    return {at::cat(outs, 2), at::cat(sums, 2)};
  }

  /// Attention of every probe to itself.
  Pair internal(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) const {
    const std::int64_t block = masks_.block_length;
    const std::int64_t probes = q.size(2) / block, kv_heads = k.size(1), dim = q.size(3);
    const std::int64_t group = q.size(1) / kv_heads;
    const at::Tensor queries = q.reshape({q.size(0), kv_heads, group, probes, block, dim});
    const auto per_probe = [&](const at::Tensor& x) {
      return x.reshape({x.size(0), kv_heads, 1, probes, block, dim});
    };
    const Pair part = attend(queries.matmul(per_probe(k).transpose(-2, -1)), per_probe(v));
    return {part.out.view(q.sizes()), part.lse.view({q.size(0), q.size(1), q.size(2)})};
  }

  const std::vector<KeysValues>& prefix_;
  const ProbeMasks& masks_;
  const Pairs* kept_;
};

/// One step's input and the teacher's predictions for it.
struct Step {
  at::Tensor tokens;           // int64 [S, P * B], on the host
  at::Tensor masked;           // int64 [M], flat indices of masked positions, on the host
  at::Tensor log_probability;  // [M, V] float32
};

/// Log probabilities [M, V] of the masked positions.
at::Tensor predictions(const BlockDiffusionModel& model, const Step& step, const ReuseBatch& batch,
                       ForwardSeams& rows) {
  const at::Tensor hidden =
      model.forward(step.tokens.to(model.device()), batch.positions.to(model.device()), rows);
  return model.logits(hidden.flatten(0, 1).index_select(0, step.masked.to(model.device())))
      .to(at::kFloat)
      .log_softmax(-1);
}

/// The input of the next step: in every block, the tokens above the threshold, at most the quota's
/// best ones, or the best one.
at::Tensor decided(const Step& step, std::int64_t block, const ReuseObjective& objective) {
  at::Tensor next = step.tokens.clone();
  const auto [log_best, tokens] = step.log_probability.max(-1);
  const at::Tensor probability = log_best.exp().cpu().contiguous();
  const at::Tensor best = tokens.cpu().contiguous();
  const float* sure = probability.const_data_ptr<float>();
  const auto* place = step.masked.const_data_ptr<std::int64_t>();
  const std::int64_t count = step.masked.numel();
  for (std::int64_t begin = 0, end = 0; begin < count; begin = end) {
    while (end < count && place[end] / block == place[begin] / block) ++end;
    std::vector<std::int64_t> order;
    for (std::int64_t i = begin; i < end; ++i) order.push_back(i);
    std::stable_sort(order.begin(), order.end(),
                     [sure](std::int64_t a, std::int64_t b) { return sure[a] > sure[b]; });
    for (std::int64_t i = 0; i < std::min(objective.quota, end - begin); ++i) {
      const std::int64_t at = order[static_cast<std::size_t>(i)];
      if (i > 0 && static_cast<double>(sure[at]) <= objective.threshold) break;
      next.mutable_data_ptr<std::int64_t>()[place[at]] = best.const_data_ptr<std::int64_t>()[at];
    }
  }
  return next;
}

std::vector<Step> teach(const BlockDiffusionModel& teacher, const ReuseBatch& batch,
                        const ProbeMasks& masks, const ReuseObjective& objective) {
  const at::NoGradGuard no_grad;
  const std::vector<KeysValues> prefix = prefix_of(teacher, batch.prefix);
  std::vector<Step> steps;
  at::Tensor tokens = batch.tokens;
  for (std::int64_t s = -objective.start_steps; s < objective.unroll; ++s) {
    Step step{tokens, tokens.flatten().eq(objective.mask_token).nonzero().flatten(), {}};
    ProbeRows rows(prefix, masks, nullptr);
    step.log_probability = predictions(teacher, step, batch, rows);
    if (s + 1 < objective.unroll) tokens = decided(step, batch.block_length, objective);
    if (s >= 0) steps.push_back(std::move(step));
  }
  return steps;
}

/// Sum over the positions of KL(teacher || student).
at::Tensor divergence(const at::Tensor& teacher, const at::Tensor& student) {
  return (teacher.exp() * (teacher - student)).sum();
}

std::int64_t agreeing(const at::Tensor& teacher, const at::Tensor& student) {
  return teacher.argmax(-1).eq(student.detach().argmax(-1)).sum().item<std::int64_t>();
}

}  // namespace

ReuseLoss reuse_loss(const BlockDiffusionModel& teacher, const BlockDiffusionModel& student,
                     const ReuseBatch& batch, const ReuseObjective& objective) {
  const ProbeMasks masks(batch, student);
  const std::vector<Step> steps = teach(teacher, batch, masks, objective);
  const std::vector<KeysValues> prefix = prefix_of(student, batch.prefix);
  const at::Device device = student.device();
  ProbeRows first(prefix, masks, nullptr);
  student.forward(steps.front().tokens.to(device), batch.positions.to(device), first);
  ReuseLoss result;
  at::Tensor reuse_sum = at::zeros({}, at::device(device));
  at::Tensor dense_sum = at::zeros({}, at::device(device));
  for (std::size_t s = 1; s < steps.size(); ++s) {
    const Step& step = steps[s];
    if (step.masked.numel() == 0) break;
    ProbeRows reusing(prefix, masks, &first.pairs);
    const at::Tensor reuse = predictions(student, step, batch, reusing);
    ProbeRows exact(prefix, masks, nullptr);
    const at::Tensor dense = predictions(student, step, batch, exact);
    reuse_sum = reuse_sum + divergence(step.log_probability, reuse);
    dense_sum = dense_sum + divergence(step.log_probability, dense);
    result.positions += step.masked.numel();
    result.reuse_agrees += agreeing(step.log_probability, reuse);
    result.dense_agrees += agreeing(step.log_probability, dense);
  }
  if (result.positions == 0) return result;
  const auto count = static_cast<double>(result.positions);
  result.loss = (reuse_sum * objective.reuse_weight + dense_sum * objective.dense_weight) / count;
  result.reuse_kl = reuse_sum.item<double>() / count;
  result.dense_kl = dense_sum.item<double>() / count;
  return result;
}

}  // namespace blockscope
