#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "decode_record/base/error.h"
#include "kernels/ops.h"
#include "probe/model/device.h"
#include "probe/policies/intervention.h"

namespace blockscope {
namespace {

bool chosen(const std::vector<int64_t>& list, int64_t value) {
  return list.empty() || std::ranges::binary_search(list, value);
}

class IntervenedPolicy final : public AttentionPolicy {
 public:
  IntervenedPolicy(std::unique_ptr<AttentionPolicy> inner, std::vector<Intervention> interventions,
                   const PatchedModel& model)
      : inner_(std::move(inner)),
        interventions_(std::move(interventions)),
        kept_(interventions_.size()) {
    for (const Intervention& given : interventions_) {
      sources_.push_back(
          given.trace.empty()
              ? nullptr
              : std::make_unique<PatchSource>(given.trace, model, intervention_entry(given).needs));
    }
  }

  std::string name() const override { return inner_->name() + " with interventions"; }
  int64_t selected_size(int64_t longest) const override { return inner_->selected_size(longest); }
  bool keeps_residual() const override { return inner_->keeps_residual(); }
  ChoosingTime choosing_time() const override { return inner_->choosing_time(); }
  bool intervenes() const override { return true; }
  int64_t rows_read(int64_t slot, int64_t rows) const override {
    return inner_->rows_read(slot, rows);
  }
  void end_pass() override { inner_->end_pass(); }
  void remove(int64_t slot) override { inner_->remove(slot); }
  void begin_pass(const PassContext& context) override {
    context_ = &context;
    for (KeptPairs& kept : kept_) {  // those of finished sequences are large
      std::erase_if(kept, [&](const auto& pair) {
        return std::ranges::none_of(context.sequences, [&](const SequencePass& pass) {
          return pass.sequence == pair.first.second;
        });
      });
    }
    inner_->begin_pass(context);
  }

  at::Tensor patched_hidden(int64_t layer, const at::Tensor& hidden,
                            const at::Tensor& places) override {
    at::Tensor patched;
    for (size_t i = 0; i < interventions_.size(); ++i) {
      const Intervention& given = interventions_[i];
      const InterventionEntry& entry = intervention_entry(given);
      if (!entry.hidden || !chosen(given.layers, layer)) continue;
      for (size_t s = 0; s < context_->sequences.size(); ++s) {
        const SequencePass& pass = context_->sequences[s];
        if (!includes(given, pass)) continue;
        if (!patched.defined()) patched = hidden.clone();
        patched[static_cast<int64_t>(s)].copy_(
            entry.hidden(*sources_[i], pass, layer).index_select(0, places));
      }
    }
    return patched;
  }

  AttentionParts attend(const AttentionInput& input, const ExternalKeys& external) override {
    AttentionParts parts = inner_->attend(input, external);
    const at::Tensor none = at::zeros({input.q.size(0), input.q.size(1)}, at::kBool);
    bool copied = false;
    std::vector<at::Tensor> hidden(context_->sequences.size());
    for (size_t i = 0; i < interventions_.size(); ++i) {
      const Intervention& given = interventions_[i];
      const InterventionEntry& entry = intervention_entry(given);
      if (!entry.apply || !chosen(given.layers, input.layer)) continue;
      at::Tensor changed = none.clone();
      InterventionSite site{input, external, *context_, parts, kept_[i], sources_[i].get(), hidden};
      for (size_t s = 0; s < context_->sequences.size(); ++s) {
        const SequencePass& pass = context_->sequences[s];
        const auto row = static_cast<int64_t>(s);
        if (entry.watch && pass.kind == PassKind::denoise) entry.watch(given, site, row);
        if (!includes(given, pass)) continue;
        if (!std::exchange(copied, true)) copy(parts);
        const at::Tensor heads = given.heads.empty() ? at::arange(input.q.size(1), at::kLong)
                                                     : at::tensor(given.heads, at::kLong);
        if (entry.apply(given, site, row, heads)) changed[row].index_fill_(0, heads, true);
      }
      // At once, because the next intervention may read `out`.
      if (changed.any().item<bool>()) finish(changed, input, parts);
    }
    return parts;
  }

 private:
  static bool includes(const Intervention& given, const SequencePass& pass) {
    if (!chosen(given.blocks, pass.block)) return false;
    if (pass.kind == PassKind::commit) return given.commits;
    return pass.kind == PassKind::denoise && chosen(given.steps, pass.step);
  }

  /// The policy may keep its parts for later steps.
  static void copy(AttentionParts& parts) {
    for (at::Tensor* tensor : {&parts.external, &parts.lse_external, &parts.internal,
                               &parts.lse_internal, &parts.residual, &parts.lse_residual}) {
      if (tensor->defined()) *tensor = tensor->clone();
    }
  }

  /// Merges the changed heads' outputs again. Other heads keep theirs bit for bit.
  static void finish(const at::Tensor& changed, const AttentionInput& input,
                     AttentionParts& parts) {
    std::vector<at::Tensor> outputs{parts.external, parts.internal};
    std::vector<at::Tensor> lses{parts.lse_external, parts.lse_internal};
    if (parts.residual.defined()) {
      outputs.push_back(parts.residual);
      lses.push_back(parts.lse_residual);
    }
    const at::Tensor merged = merge_attention(outputs, lses).out.to(parts.out.scalar_type());
    const at::Tensor heads = on_device(changed, parts.out.device()).unsqueeze(-1).unsqueeze(-1);
    parts.out = at::where(heads, merged, parts.out);
    parts.intervened = parts.intervened.defined() ? parts.intervened.logical_or(changed) : changed;
    if (input.spread == nullptr || !input.spread->entropy.defined()) return;
    WeightSpread& spread = *input.spread;  // of the weights before the intervention
    for (at::Tensor* values : spread.answer()) {
      values->masked_fill_(on_device(changed, values->device()).unsqueeze(-1),
                           std::numeric_limits<double>::quiet_NaN());
    }
  }

  std::unique_ptr<AttentionPolicy> inner_;
  std::vector<Intervention> interventions_;
  std::vector<KeptPairs> kept_;  // by intervention, like the next one
  std::vector<std::unique_ptr<PatchSource>> sources_;
  const PassContext* context_ = nullptr;
};

}  // namespace

std::unique_ptr<AttentionPolicy> with_interventions(std::unique_ptr<AttentionPolicy> inner,
                                                    std::vector<Intervention> interventions,
                                                    const PatchedModel& model) {
  if (interventions.empty()) return inner;
  std::ranges::stable_partition(interventions, [](const Intervention& given) {
    return intervention_entry(given).comes_first;
  });
  for (const Intervention& given : interventions) {
    const auto check = [&](const char* what, const std::vector<int64_t>& list, int64_t count) {
      if (list.empty() || list.back() < count) return;
      throw UsageError(fmt::format("intervene {}: {}: expected indices in [0, {}), got {}",
                                   intervention_text(given), what, count, list.back()));
    };
    check("layers", given.layers, model.num_layers);
    check("heads", given.heads, model.num_heads);
  }
  return std::make_unique<IntervenedPolicy>(std::move(inner), std::move(interventions), model);
}

}  // namespace blockscope
