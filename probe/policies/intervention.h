// Interventions: what is taken away from attention, or changed in it, while a model decodes. Their
// table has one entry each, with its options and what it does to a layer's parts. The command line,
// help and the settings of a trace read this table.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "probe/choices/choice.h"
#include "probe/policies/attention_policy.h"
#include "probe/policies/patch_source.h"

namespace blockscope {

/// An intervention and the options of all of them. It reads only the options of its entry.
struct Intervention {
  std::string what;
  std::vector<int64_t> layers, heads, steps, blocks;  // ascending; empty: all
  bool commits = false;                               // also in commit passes
  bool mean = false;                                  // drop_head
  int64_t from = 1;                                   // freeze_external: the step that is kept
  std::optional<double> by;                           // scale: the factor; noise: relative size
  uint64_t seed = 0;                                  // noise
  std::vector<int64_t> positions;                     // hide_keys, and the next four
  std::string region;
  std::optional<int64_t> token;
  std::optional<int64_t> top;
  std::optional<double> sinks;
  std::string trace;  // patch_*

  bool operator==(const Intervention&) const = default;
};

/// External pairs that an intervention keeps from step to step, by layer and sequence.
struct KeptPair {
  int64_t block = -1;
  at::Tensor external, lse;  // [H, T, D], [H, T]
};
using KeptPairs = std::map<std::pair<int64_t, int64_t>, KeptPair>;

/// One layer of a denoising or commit pass, in the middle of an intervention.
struct InterventionSite {
  const AttentionInput& input;
  const ExternalKeys& external;
  const PassContext& context;
  AttentionParts& parts;      // its parts may be changed in place; `out` is merged from them later
  KeptPairs& kept;            // of this intervention
  const PatchSource* source;  // of this intervention; null without a trace
  std::vector<at::Tensor>& hidden;  // [S] of [H, N + T_in] bool: keys hidden so far at this layer,
                                    // external ones first; undefined: none
};

constexpr std::string_view kInterveneKind = "intervene";

struct InterventionEntry : Choice<Intervention> {
  /// Changes the parts of sequence `s` in the heads [N] int64. False: nothing is different.
  std::function<bool(const Intervention&, InterventionSite&, int64_t s, const at::Tensor& heads)>
      apply = nullptr;
  /// The residual stream that replaces the one that enters a layer, [B, hidden_size] float32.
  std::function<at::Tensor(const PatchSource&, const SequencePass&, int64_t layer)> hidden =
      nullptr;
  /// The datasets that it reads of a trace.
  std::vector<Field> needs = {};
  /// Called for every denoising pass of a chosen layer, also at other steps and blocks.
  std::function<void(const Intervention&, InterventionSite&, int64_t s)> watch = nullptr;
  /// It takes keys and values from some query heads, perhaps not from all that share them.
  bool about_keys = false;
  /// It computes attention again, so it comes before interventions that change the result.
  bool comes_first = false;
  /// Throws UsageError("expected ...") for options that contradict each other or are missing.
  std::function<void(const Intervention&)> check = [](const auto&) {};
};

const std::vector<InterventionEntry>& intervention_table();
const InterventionEntry& intervention_entry(const Intervention& intervention);

/// "drop_head,layers=3,heads=0-3+7", or the name of a JSON file (*.json) with a list of such texts
/// or of objects {"what": "drop_head", "layers": [3], ...}. Throws UsageError.
std::vector<Intervention> read_interventions(const std::vector<std::string>& texts);
/// Whether one of them depends on regions.
bool names_region(const std::vector<Intervention>& interventions);
/// Throws UsageError for a region that no prompt of the run has.
void check_regions(const std::vector<Intervention>& interventions, const PromptRegions& regions);
/// The shortest text that gives this intervention.
std::string intervention_text(const Intervention& intervention);

/// Says which of the chosen heads share keys and values with heads that keep them; empty: none do.
std::string shared_keys_text(const Intervention& intervention, int64_t num_heads,
                             int64_t num_kv_heads);

/// Applies the interventions to what `inner` returns in denoising passes: those that come first,
/// then the others in their order. Commit passes stay as they are, unless an intervention includes
/// them. Throws UsageError for layers or heads that the model lacks, and what PatchSource throws.
std::unique_ptr<AttentionPolicy> with_interventions(std::unique_ptr<AttentionPolicy> inner,
                                                    std::vector<Intervention> interventions,
                                                    const PatchedModel& model);

}  // namespace blockscope
