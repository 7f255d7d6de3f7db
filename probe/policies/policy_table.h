// The table of attention policies. Each entry is in its policy's own file; policy_table.cpp lists
// them. The command line, studies, verify and help read this table, and so do the settings of a
// trace and their comparison by --resume.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "decode_record/schema/reuse_rule.h"
#include "probe/choices/choice.h"
#include "probe/choices/own_option.h"
#include "probe/policies/attention_policy.h"
#include "probe/policies/intervention.h"
#include "probe/policies/selection_policy.h"

namespace blockscope {

/// A policy's name and the options of all policies. A policy reads only the options of its entry.
struct PolicyOptions {
  std::string policy = "exact";
  std::optional<int64_t> tau;                // flashblock; unset: see reuse_rule
  std::optional<ReuseCount> count;           // flashblock; unset: see reuse_rule
  ReuseRefresh refresh = ReuseRefresh::all;  // flashblock
  std::optional<double> bound;               // flashblock, in place of tau and count
  std::optional<double> sure;                // flashblock, with tau or bound
  std::string reuse_file;                    // flashblock
  std::optional<int64_t> k;                  // sparse policies: one of k and density
  std::optional<double> density;
  int64_t exact_layers = 0;                 // sparse policies
  int64_t page = 16;                        // quest
  bool per_block = false;                   // sparsed
  uint64_t seed = 0;                        // random
  std::vector<Intervention> interventions;  // --intervene, under every policy
  OwnValues own;                            // a plugin's options
  bool no_overlap = false;  // choose on the decoding thread; only for timing, not a user's option

  bool operator==(const PolicyOptions&) const = default;
};

/// The model that a policy is made for.
struct PolicyModel {
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t hidden_size = 0;
  std::string digest;  // of the checkpoint
};

/// The run that a policy must fit.
struct PolicySite {
  bool bidirectional = false;
  bool autoregressive = false;
  bool whole_blocks = true;   // passes compute whole blocks of queries
  std::string cache;          // its name, for messages
  bool commit_passes = true;  // blocks are committed by passes of their own
};

/// A policy, and its settings in a trace.
struct ChosenPolicy {
  std::unique_ptr<AttentionPolicy> policy;
  std::string settings;  // a JSON object: `policy` and the options it uses, with their values
};

/// The number of key rows that a step of a sparse policy reads for each KV head.
struct StepReads {
  int64_t read = 0;    // rows that are attended to
  int64_t scored = 0;  // further rows that are read to choose the set
};

/// Which denoising step reads everything and gives the sets of later steps.
enum class SetsFrom { every_step, first_of_block, once_a_run };

struct PolicyEntry : Choice<PolicyOptions> {
  bool sparse = false;    // reads chosen keys
  bool plugin = false;    // added by add_policy()
  bool residual = false;  // also keeps the attention over the other keys
  /// Whether the policy carries something from step to step of a block. Blocks of one step have
  /// nothing to carry.
  std::function<bool(const PolicyOptions&)> within_block = [](const auto&) { return false; };
  std::function<SetsFrom(const PolicyOptions&)> sets_from = [](const auto&) {
    return SetsFrom::every_step;
  };
  /// For byte predictions: what a step reads that chooses `size` of `length` keys. nullopt: it
  /// depends on which keys are chosen.
  std::function<std::optional<StepReads>(const PolicyOptions&, int64_t length, int64_t size)>
      reads = [](const PolicyOptions&, int64_t, int64_t size) {
        return StepReads{size, 0};
      };
  /// Floating-point operations for each channel of a scored row, with `queries` of a KV head.
  std::function<double(double queries)> scoring_flops = [](double queries) {
    return 2.0 * queries;
  };
  /// Throws UsageError for options that contradict each other.
  std::function<void(const PolicyOptions&)> check = [](const auto&) {};
  /// Why the policy can't be used in this run, with a hint; empty: it can. Rules for all policies
  /// are in check_policy_fits.
  std::function<std::string(const PolicyOptions&, const PolicySite&)> refuses =
      [](const auto&, const auto&) { return std::string(); };
  /// Throws UsageError, and what read_reuse_file throws. `settings` holds choice_json(); the
  /// function may add to it.
  std::function<std::unique_ptr<AttentionPolicy>(const PolicyOptions&, const PolicyModel&,
                                                 nlohmann::json& settings)>
      make;
};

/// The entry of a policy that reads k keys of each KV head. Its options are those of all sparse
/// policies, then `own`.
PolicyEntry sparse_entry(ChoiceFacts facts, std::vector<ChoiceOption<PolicyOptions>> own = {});

/// The settings that a sparse policy is made with.
SelectionOptions selection_options(const PolicyOptions& options, int64_t num_layers);

/// The built-in policies, then those that plugins added.
const std::vector<PolicyEntry>& policy_table();
/// Adds a plugin's policy, or replaces the plugin's earlier one of that name. Throws UsageError for
/// a name that a built-in policy has. Entries that policy_table() gave before may be gone.
void add_policy(PolicyEntry entry);
/// The entry of the policy that the options name. Throws UsageError for an unknown policy.
const PolicyEntry& policy_entry(const PolicyOptions& options);

/// "quest,k=64,page=8". Throws UsageError: an unknown name or option, a value out of range, options
/// that contradict each other or are missing.
/// `interventions`: texts as read_interventions takes them.
PolicyOptions read_policy(std::string_view text,
                          const std::vector<std::string>& interventions = {});
/// The shortest text that gives these options, then " with " and the interventions; outputs name
/// the policy by it.
std::string policy_text(const PolicyOptions& options);

/// Throws UsageError for a policy that does not fit this run. `given_by`: how the user gave the
/// policy, for the message.
void check_policy_fits(const PolicyOptions& options, const PolicySite& site,
                       std::string_view given_by);

/// Throws UsageError, and what read_reuse_file throws.
ChosenPolicy choose_policy(const PolicyOptions& options, const PolicyModel& model);

}  // namespace blockscope
