#include "probe/policies/selection_policy.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "decode_record/base/error.h"
#include "kernels/ops.h"
#include "probe/model/stopwatch.h"
#include "probe/policies/exact_policy.h"

namespace blockscope {

void SelectionOptions::check() const {
  if ((k > 0) == (density > 0.0)) {
    throw UsageError(
        fmt::format("a sparse policy: expected either k or a density above 0, got k {} "
                    "and density {}. HINT: k=512, or density=0.3",
                    k, density));
  }
  if (k < 0 || !(density >= 0.0 && density <= 1.0)) {
    throw UsageError(fmt::format(
        "a sparse policy: expected k >= 1 or a density in (0, 1], got k {} and density {}", k,
        density));
  }
  if (exact_layers < 0 || exact_layers > num_layers) {
    throw UsageError(fmt::format("exact_layers: expected 0 to the model's {} layers, got {}",
                                 num_layers, exact_layers));
  }
}

int64_t SelectionOptions::set_size(int64_t length) const {
  if (k > 0) return std::min(k, length);
  // 0.28 * 25 is a little more than 7 in binary, and is 7 keys.
  const double share = density * static_cast<double>(length);
  const auto keys = static_cast<int64_t>(std::ceil(share - 1e-12 * share));
  return std::min(std::max<int64_t>(keys, 1), length);
}

AttentionParts selected_attention(const AttentionInput& input, const ExternalKeys& external,
                                  const std::vector<const KeySelection*>& sets) {
  const auto sequences = static_cast<int64_t>(sets.size());
  at::Tensor dense_flags;  // undefined: no sequence reads everything
  int64_t widest = 0;
  bool any_residual = false;
  for (int64_t s = 0; s < sequences; ++s) {
    const KeySelection& set = *sets[static_cast<size_t>(s)];
    if (!set.index.defined()) {
      if (!dense_flags.defined()) dense_flags = at::zeros({sequences}, at::kBool);
      dense_flags[s] = true;
      continue;
    }
    widest = std::max(widest, set.index.size(1));
    any_residual = any_residual || set.residual.defined();
  }
  const int64_t kv_heads = external.key.size(1);
  const at::Tensor index =
      at::full({sequences, kv_heads, widest}, -1, input.q.options().dtype(at::kInt));
  const auto floats = input.q.options().dtype(at::kFloat);
  at::Tensor residual;
  at::Tensor lse_residual;
  if (any_residual) {
    residual = at::zeros(input.q.sizes(), floats);
    lse_residual =
        at::full(input.q.sizes().slice(0, 3), -std::numeric_limits<float>::infinity(), floats);
  }
  for (int64_t s = 0; s < sequences; ++s) {
    const KeySelection& set = *sets[static_cast<size_t>(s)];
    if (!set.index.defined()) continue;
    index[s].narrow(1, 0, set.index.size(1)).copy_(set.index);
    if (!set.residual.defined()) continue;
    residual[s].copy_(set.residual);
    lse_residual[s].copy_(set.lse_residual);
  }
  SourcedAttention result =
      gather_attention(input.q, external.key, external.value, external.length, index, input.k,
                       input.v, input.scale, dense_flags, residual, lse_residual, input.spread);
  AttentionParts parts = parts_of(result);
  parts.keys_read = std::move(result.keys_read);
  parts.selected = index;
  parts.residual = std::move(residual);
  parts.lse_residual = std::move(lse_residual);
  return parts;
}

SelectionPolicy::SelectionPolicy(std::string name, SelectionOptions options)
    : name_(std::move(name)), options_(std::move(options)) {
  options_.check();
}

void SelectionPolicy::begin_pass(const PassContext& context) {
  end_pass();  // of a pass that an exception cut short
  context_ = &context;
  const size_t slots = context.sequences.size();
  sequences_.resize(slots, -1);
  sets_.resize(slots);
  for (size_t slot = 0; slot < slots; ++slot) {
    const SequencePass& pass = context.sequences[slot];
    if (pass.kind == PassKind::denoise && captures(pass)) ++generation_;
    // The same policy may decode many batches, and the same sequence twice.
    if (sequences_[slot] == pass.sequence && pass.run_step != 1) continue;
    ++generation_;
    sequences_[slot] = pass.sequence;
    sets_[slot].assign(static_cast<size_t>(options_.num_layers), {});
    reset_slot(static_cast<int64_t>(slot));
  }
}

std::optional<std::vector<int64_t>> SelectionPolicy::repeats() const {
  const auto& passes = context_->sequences;
  // If only some sequences are dense, the pass needs flags from the host.
  const bool dense_step = dense(passes.front());
  for (const SequencePass& pass : passes) {
    if (pass.kind != PassKind::denoise || captures(pass) || dense(pass) != dense_step) return {};
  }
  if (!dense_step && !keeps_sets()) return {};
  return std::vector<int64_t>{dense_step, generation_};
}

bool SelectionPolicy::is_dense(const SequencePass& pass, int64_t layer) const {
  return layer < options_.exact_layers || pass.kind != PassKind::denoise || dense(pass);
}

SequenceAttention SelectionPolicy::view(const AttentionInput& input, const ExternalKeys& external,
                                        int64_t slot, const at::Tensor& lse_external) const {
  const auto row = [slot](const at::Tensor& tensor) { return tensor.narrow(0, slot, 1); };
  const at::Tensor length = row(external.length);
  const int64_t keys = length.item<int64_t>();
  return {context_->sequences[static_cast<size_t>(slot)],
          slot,
          input.layer,
          row(input.q),
          {row(external.key).narrow(2, 0, keys), row(external.value).narrow(2, 0, keys), length},
          lse_external.defined() ? row(lse_external) : lse_external,
          input.scale};
}

AttentionParts SelectionPolicy::attend(const AttentionInput& input, const ExternalKeys& external) {
  // A window is short, and its positions move from block to block.
  if (external.windowed()) return exact_attention(input, external);
  const auto& passes = context_->sequences;
  const bool sparse = std::any_of(passes.begin(), passes.end(), [&](const SequencePass& pass) {
    return !is_dense(pass, input.layer);
  });
  AttentionParts parts = sparse ? gather(input, external) : exact_attention(input, external);
  at::Tensor& rows = parts.rows_scored;
  for (size_t s = 0; s < passes.size(); ++s) {
    const SequencePass& pass = passes[s];
    const bool captured = is_dense(pass, input.layer) && input.layer >= options_.exact_layers &&
                          pass.kind == PassKind::denoise && captures(pass);
    if (is_dense(pass, input.layer) && !captured) continue;
    const int64_t length = external.length[static_cast<int64_t>(s)].item<int64_t>();
    int64_t scored = rows_scored(pass, length);
    // unselected_attention reads the unselected keys and values once more.
    if (captured && options_.residual) scored += 2 * (length - options_.set_size(length));
    if (scored > 0) {
      if (!rows.defined()) rows = at::zeros({static_cast<int64_t>(passes.size())}, at::kLong);
      rows[static_cast<int64_t>(s)] = scored;
    }
    if (!captured) continue;
    // The committed keys stay where they are until end_pass, and q is this layer's own.
    KeySelection& target = sets_[s][static_cast<size_t>(input.layer)];
    const SequenceAttention at = view(input, external, static_cast<int64_t>(s), parts.lse_external);
    const auto capture = [this, &target, at] { target = exact_set(at); };
    if (options_.overlap && input.q.is_cpu()) {
      worker_.submit(capture);
      continue;
    }
    const Stopwatch watch(inline_ns_);
    if (options_.overlap) {
      stream_.submit({at.q, at.external.key, at.external.value, at.lse_external}, [&] {
        capture();
        return std::vector{target.index, target.residual, target.lse_residual};
      });
    } else {
      capture();
    }
  }
  return parts;
}

int64_t SelectionPolicy::rows_scored(const SequencePass& pass, int64_t length) const {
  return captures(pass) ? length : 0;
}

KeySelection SelectionPolicy::exact_set(const SequenceAttention& at) const {
  KeySelection selection;
  const int64_t length = at.external.key.size(2);
  const int64_t kv_heads = at.external.key.size(1);
  const int64_t k = options_.set_size(length);
  if (k == 0) {
    selection.index = at::empty({kv_heads, 0}, at.q.options().dtype(at::kInt));
    return selection;
  }
  const at::Tensor index =
      block_topk(at.q, at.external.key, at.external.length, at.lse_external, k, at.scale).index;
  selection.index = index.squeeze(0);
  if (options_.residual) {
    const TrustedSetsScope trusted;
    const PartialAttention rest = unselected_attention(at.q, at.external.key, at.external.value,
                                                       at.external.length, index, at.scale);
    selection.residual = rest.output.squeeze(0);
    selection.lse_residual = rest.lse.squeeze(0);
  }
  return selection;
}

AttentionParts SelectionPolicy::gather(const AttentionInput& input, const ExternalKeys& external) {
  static const KeySelection whole_prefix;
  const auto& passes = context_->sequences;
  std::vector<const KeySelection*> sets(passes.size(), &whole_prefix);
  for (size_t s = 0; s < passes.size(); ++s) {
    const SequencePass& pass = passes[s];
    if (is_dense(pass, input.layer)) continue;
    const auto slot = static_cast<int64_t>(s);
    KeySelection& set = sets_[s][static_cast<size_t>(input.layer)];
    const bool reads = rows_scored(pass, external.length[slot].item<int64_t>()) > 0;
    int64_t elapsed = 0;
    {
      const Stopwatch watch(elapsed);
      choose(view(input, external, slot, {}), set);
    }
    if (reads) inline_ns_ += elapsed;  // else the set was kept, or costs nothing
    if (!set.index.defined()) {
      throw Error(
          fmt::format("{}: block {}, step {} of sequence {}: expected a set that an earlier "
                      "step captured, got none. HINT: this is a fault of the program, "
                      "please report it",
                      name_, pass.block, pass.step, pass.sequence));
    }
    sets[s] = &set;
  }
  const TrustedSetsScope trusted;  // every policy's set is distinct positions of the prefix
  return selected_attention(input, external, sets);
}

void SelectionPolicy::remove(int64_t slot) {
  const int64_t last = static_cast<int64_t>(sets_.size()) - 1;
  if (slot > last) return;
  ++generation_;
  if (slot != last) {
    sets_[static_cast<size_t>(slot)] = std::move(sets_.back());
    sequences_[static_cast<size_t>(slot)] = sequences_.back();
    move_slot(last, slot);
  }
  sets_.pop_back();
  sequences_.pop_back();
}

}  // namespace blockscope
