// What the recorder reads, and the top-k sets, which are chosen on the keys' device.
#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "kernels/ops.h"
#include "probe/model/device.h"
#include "probe/record/recorder.h"

namespace blockscope {

std::optional<AttentionReads> AttentionReads::rows_known() const {
  AttentionReads reads = *this;
  reads.present.reset();
  reads.rows = on_host(present).nonzero().squeeze(1);
  if (reads.rows.numel() == 0) return std::nullopt;
  at::Tensor& tokens = reads.sets.token_index;
  if (tokens.defined()) tokens = tokens.index_select(2, on_device(reads.rows, tokens.device()));
  return reads;
}

bool Recorder::follows(const PassContext& context) const {
  return std::any_of(
      context.sequences.begin(), context.sequences.end(),
      [&](const SequencePass& pass) { return pass.kind == PassKind::denoise && traced(pass); });
}

bool Recorder::wants_logits() const { return at_least(RecordLevel::summary); }

bool Recorder::looks_inside(const PassContext& context) const {
  return follows(context) &&
         (at_least(RecordLevel::summary) || options_.meta.experts_per_token > 0);
}

bool Recorder::reads_layer(const PassContext& context, int64_t layer) const {
  return layer_index(layer) >= 0 && at_least(RecordLevel::summary) && follows(context);
}

bool Recorder::reads_logits(const PassContext& context) const {
  return at_least(RecordLevel::summary) && follows(context);
}

bool Recorder::reads_router(const PassContext& context, int64_t layer) const {
  return layer_index(layer) >= 0 && options_.meta.experts_per_token > 0 && follows(context);
}

bool Recorder::reads_keys(const CommittedKeys& keys) const {
  return layer_index(keys.layer) >= 0 && at_least(RecordLevel::full) &&
         traced_.count(keys.sequence) > 0 && allows(options_.filter.sequences, keys.sequence);
}

bool Recorder::wants_sets(const PassContext& context) const {
  if (options_.meta.set_size == 0 || !at_least(RecordLevel::sets) || !options_.exact_known) {
    return false;
  }
  return std::any_of(context.sequences.begin(), context.sequences.end(),
                     [&](const SequencePass& pass) {
                       // Every later recall needs step 1, whatever the filter says.
                       return traced(pass) && pass.kind == PassKind::denoise &&
                              (records(pass) || pass.first_step());
                     });
}

namespace {

/// topk_sets() over the rows of the block that are true in `present` [B] bool, at least one: q
/// [S, H, B, D], lse [S, H, B]. The host doesn't know their number, so no row is left out. Missing
/// rows get probability 0, which adds nothing to the block's sum. Among the tokens' own sets, a
/// present row replaces each missing one, which adds no new set.
TopKSets sets_among(const at::Tensor& present, const AttentionView& view, const at::Tensor& lse,
                    int64_t k, bool with_tokens) {
  const at::Tensor missing = present.logical_not();
  const ExternalKeys& external = view.external;
  const TopK block = block_topk(
      view.input.q.masked_fill(missing.view({-1, 1}), 0.0), external.key, external.length,
      lse.masked_fill(missing, std::numeric_limits<double>::infinity()), k, view.input.scale);
  const at::Tensor all = at::arange(present.numel(), present.options().dtype(at::kLong));
  const at::Tensor row = at::where(present, all, present.to(at::kInt).argmax(0));
  TokenTopK tokens = token_topk(view.input.q.index_select(2, row), external.key, external.length,
                                lse.index_select(2, row), k, view.input.scale);
  TopKSets sets;
  sets.index = block.index;
  sets.probability = block.probability * (present.numel() / present.sum().to(at::kFloat));
  sets.union_size = tokens.union_size;
  if (with_tokens) sets.token_index = tokens.index;
  return sets;
}

}  // namespace

namespace {

/// Makes places among a window's keys absolute positions. first [S].
void move_sets(const at::Tensor& first, TopKSets& sets) {
  for (at::Tensor* index : {&sets.index, &sets.token_index}) {
    if (!index->defined()) continue;
    std::vector<int64_t> shape(static_cast<size_t>(index->dim()), 1);
    shape.front() = -1;
    const at::Tensor by = on_device(first, index->device()).to(at::kInt).view(shape);
    *index = at::where(index->ge(0), *index + by, *index);
  }
}

}  // namespace

bool Recorder::wants_weights(const PassContext& context, int64_t layer) const {
  return layer_index(layer) >= 0 && wants_sets(context);
}

TopKSets Recorder::sets_of(const AttentionView& view) const {
  if (!wants_sets(view.context)) return {};
  const AttentionInput& input = view.input;
  const int64_t k = options_.meta.set_size;
  const at::Tensor lse = options_.meta.set_normaliser == SetNormaliser::prefix
                             ? view.exact->lse_external
                             : at::logaddexp(view.exact->lse_external, view.exact->lse_internal);
  const auto computed = [&](const at::Tensor& rows) {
    return view.rows == nullptr ? rows : rows.index_select(2, on_device(*view.rows, rows.device()));
  };
  const bool with_tokens = at_least(RecordLevel::full);
  if (view.present != nullptr) return sets_among(*view.present, view, lse, k, with_tokens);
  return view.exact->weights.defined()
             ? topk_sets(view.exact->weights, view.external.length, lse, k, with_tokens)
             : topk_sets(computed(input.q), view.external.key, view.external.length, computed(lse),
                         k, input.scale, with_tokens);
}

AttentionReads Recorder::reads_of(const AttentionView& view) const {
  const TraceMeta& meta = options_.meta;
  const auto& passes = view.context.sequences;
  const bool arrays = at_least(RecordLevel::outputs) &&
                      std::any_of(passes.begin(), passes.end(),
                                  [this](const SequencePass& pass) { return records(pass); });
  AttentionReads reads;
  reads.layer = view.input.layer;
  reads.q = view.input.q;
  if (view.rows != nullptr) reads.rows = *view.rows;
  if (view.present != nullptr) reads.present = *view.present;
  if (view.spread != nullptr) reads.spread = *view.spread;
  reads.map = map_of(view);
  reads.map_internal = view.input.k.size(2);
  reads.used.intervened = view.used.intervened;
  reads.used.lse_external = view.used.lse_external;
  reads.used.lse_internal = view.used.lse_internal;
  reads.used.reused = view.used.reused;
  if (meta.selected_size > 0) reads.used.selected = view.used.selected;
  if (meta.has_residual) reads.used.lse_residual = view.used.lse_residual;
  const auto values = [](const AttentionParts& from, AttentionParts& to) {
    to.external = from.external;
    to.internal = from.internal;
  };
  if (arrays) {
    values(view.used, reads.used);
    if (meta.has_residual) reads.used.residual = view.used.residual;
    if (at_least(RecordLevel::full)) {
      reads.k = view.input.k;
      reads.v = view.input.v;
    }
  }
  if (!options_.exact_known || view.exact == nullptr) return reads;
  const bool same = view.exact == &view.used;
  AttentionParts& exact = same ? reads.used : reads.shadow;
  reads.exactness = same ? AttentionReads::Exact::kUsed : AttentionReads::Exact::kShadow;
  values(*view.exact, exact);
  exact.lse_external = view.exact->lse_external;
  exact.lse_internal = view.exact->lse_internal;
  if (meta.has_shadow) {
    reads.used.out = view.used.out;
    exact.out = view.exact->out;
  }
  reads.sets = sets_of(view);
  read_norms(view, reads);
  if (view.external.windowed()) move_sets(view.external.first, reads.sets);
  return reads;
}

}  // namespace blockscope
