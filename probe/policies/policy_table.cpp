#include "probe/policies/policy_table.h"

#include <fmt/format.h>

#include <utility>

#include "decode_record/base/error.h"

namespace blockscope {

// Each is defined in its policy's file.
PolicyEntry exact_entry();
PolicyEntry flashblock_entry();
PolicyEntry mage_entry();
PolicyEntry mage_flashblock_entry();
PolicyEntry sparsed_entry();
PolicyEntry sparsed_flashblock_entry();
PolicyEntry quest_entry();
PolicyEntry oracle_entry();
PolicyEntry random_entry();
PolicyEntry recent_entry();

namespace {

constexpr std::string_view kKind = "policy";

void check_selection(const PolicyOptions& options) {
  if (options.k.has_value() != options.density.has_value()) return;
  throw UsageError(
      fmt::format("expected either k or density, got {}. HINT: k=512 reads 512 keys, density=0.3 "
                  "reads 30 % of the prefix",
                  options.k.has_value() ? "both" : "none"));
}

std::vector<PolicyEntry>& entries() {
  static std::vector<PolicyEntry> table{exact_entry(),   flashblock_entry(),
                                        mage_entry(),    mage_flashblock_entry(),
                                        sparsed_entry(), sparsed_flashblock_entry(),
                                        quest_entry(),   oracle_entry(),
                                        random_entry(),  recent_entry()};
  return table;
}

}  // namespace

const std::vector<PolicyEntry>& policy_table() { return entries(); }

void add_policy(PolicyEntry entry) { add_plugin(kKind, entries(), std::move(entry)); }

const PolicyEntry& policy_entry(const PolicyOptions& options) {
  return entry_named(kKind, policy_table(), options.policy, options.policy);
}

PolicyEntry sparse_entry(ChoiceFacts facts, std::vector<ChoiceOption<PolicyOptions>> own) {
  PolicyEntry entry;
  static_cast<ChoiceFacts&>(entry) = std::move(facts);
  entry.sparse = true;
  entry.options = {
      whole_option("k", &PolicyOptions::k, 1, "external keys that a KV head reads at a step"),
      real_option("density", &PolicyOptions::density, {0.0, 1.0, true},
                  "the same as a share of the prefix"),
      whole_option("exact_layers", &PolicyOptions::exact_layers, 0,
                   "number of first layers that read every key (MAGE: 2)")};
  for (auto& option : own) entry.options.push_back(std::move(option));
  entry.check = check_selection;
  return entry;
}

SelectionOptions selection_options(const PolicyOptions& options, int64_t num_layers) {
  SelectionOptions selection;
  selection.num_layers = num_layers;
  selection.k = options.k.value_or(0);
  selection.density = options.density.value_or(0.0);
  selection.exact_layers = options.exact_layers;
  selection.residual = policy_entry(options).residual;
  selection.overlap = !options.no_overlap;
  return selection;
}

PolicyOptions read_policy(std::string_view text, const std::vector<std::string>& interventions) {
  PolicyOptions options;
  const PolicyEntry& entry = read_choice(kKind, policy_table(), text, options);
  options.policy = entry.name;
  check_choice(kKind, text, [&] { entry.check(options); });
  options.interventions = read_interventions(interventions);
  return options;
}

std::string policy_text(const PolicyOptions& options) {
  std::string text = choice_text(policy_entry(options), options);
  for (const Intervention& one : options.interventions) text += " with " + intervention_text(one);
  return text;
}

void check_policy_fits(const PolicyOptions& options, const PolicySite& site,
                       std::string_view given_by) {
  const PolicyEntry& entry = policy_entry(options);
  const auto refuse = [&](const std::string& why) {
    throw UsageError(fmt::format("{} {}: {}", given_by, policy_text(options), why));
  };
  if (const std::string why = entry.refuses(options, site); !why.empty()) refuse(why);
  const bool approximates =
      entry.sparse || entry.within_block(options) || !options.interventions.empty();
  if (approximates && !site.whole_blocks) {
    refuse(fmt::format(
        "needs whole blocks, but the cache {} computes single rows of them. HINT: use another "
        "cache",
        site.cache));
  }
  const bool commits = std::ranges::any_of(options.interventions, &Intervention::commits);
  if (commits && !site.commit_passes) {
    refuse(
        "commits: the run has no commit passes of its own. HINT: use --cache commit with a model "
        "that decodes blocks one after the other");
  }
  if (entry.within_block(options) && site.autoregressive) {
    refuse(
        "does nothing for a model that decodes token by token: its blocks have no later steps that "
        "could reuse. HINT: use another policy, or a block-diffusion model");
  }
}

ChosenPolicy choose_policy(const PolicyOptions& options, const PolicyModel& model) {
  const PolicyEntry& entry = policy_entry(options);
  nlohmann::json settings = choice_json(entry, options);
  settings["policy"] = entry.name;
  ChosenPolicy chosen;
  try {
    chosen.policy = entry.make(options, model, settings);
  } catch (const UsageError& error) {
    refuse_choice(kKind, policy_text(options), error.what());
  }
  for (const Intervention& one : options.interventions) {
    settings["interventions"].push_back(intervention_text(one));
  }
  chosen.policy = with_interventions(
      std::move(chosen.policy), options.interventions,
      {model.num_layers, model.num_heads, model.num_kv_heads, model.head_dim, model.hidden_size});
  // A file name need not be UTF-8.
  chosen.settings = settings.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return chosen;
}

}  // namespace blockscope
