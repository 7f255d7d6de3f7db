// --policy and what belongs to it, shared by capture, eval and verify; the same as text; and the
// policy they resolve to.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "probe/policies/attention_policy.h"
#include "probe/policies/selection_policy.h"
#include "probe/run/run_flags.h"

namespace blockscope {

struct PolicyFlags {
  std::string policy = "exact";
  std::optional<int64_t> tau;  // flashblock; unset: see reuse_tau
  std::string reuse_file;      // flashblock
  std::optional<int64_t> k;    // sparse policies: one of k and density
  std::optional<double> density;
  int64_t page = 16;         // quest
  int64_t exact_layers = 0;  // sparse policies
  bool per_block = false;    // sparsed
  uint64_t policy_seed = 0;  // random
  bool no_overlap = false;   // mage, sparsed: choose on the decoding thread; no flag, for timing

  bool operator==(const PolicyFlags&) const = default;
};
void add_policy_flags(CLI::App& app, PolicyFlags& flags);
/// Throws UsageError for an unknown policy, and for an option that the policy would ignore or miss.
void check_policy_flags(const CLI::App& app, const PolicyFlags& flags);

/// A policy as text: its name, then its options as on the command line without the dashes, with
/// commas between them ("quest,k=64,page=8", "sparsed,density=0.3,per-block"); a file name with a
/// comma can't be said. Throws UsageError where the options would be refused, in the same words
/// behind the text.
PolicyFlags policy_from_text(std::string_view text);
/// The text that gives these flags, as short as it can be: what a policy is called in outputs.
std::string policy_text(const PolicyFlags& flags);

/// Throws UsageError for a policy that carries something from step to step of a block where a block
/// has one step: autoregressive decoding. `option` is what the policy was given by.
void check_policy_fits(const PolicyFlags& flags, const DecodeOptions& options,
                       std::string_view option = "--policy");

/// Keys and layers that a sparse policy is made with.
SelectionOptions selection_options(const PolicyFlags& flags, int64_t num_layers);
bool is_sparse(const PolicyFlags& flags);

/// A policy, and what a trace says about it.
struct ChosenPolicy {
  std::unique_ptr<AttentionPolicy> policy;
  std::string settings;  // a JSON object: `policy` and the options it uses, with their values
};
/// Throws UsageError, and what read_reuse_file throws.
ChosenPolicy choose_policy(const PolicyFlags& flags, const LoadedModel& model);

}  // namespace blockscope
