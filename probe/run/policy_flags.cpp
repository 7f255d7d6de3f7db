#include "probe/run/policy_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "command_line/exit_code.h"
#include "command_line/options.h"
#include "command_line/standard_streams.h"
#include "decode_record/base/error.h"
#include "decode_record/base/sha256.h"
#include "decode_record/interchange/reuse_file.h"
#include "probe/policies/exact_policy.h"
#include "probe/policies/flashblock_policy.h"
#include "probe/policies/mage_policy.h"
#include "probe/policies/oracle_policy.h"
#include "probe/policies/quest_policy.h"
#include "probe/policies/random_policy.h"
#include "probe/policies/recent_policy.h"
#include "probe/policies/sparsed_policy.h"

namespace blockscope {
namespace {

constexpr std::array<const char*, 10> kPolicies{
    "exact", "flashblock", "mage",   "mage+flashblock", "sparsed", "sparsed+flashblock",
    "quest", "oracle",     "random", "recent"};

std::string known_policies() {
  std::string names;
  for (const char* name : kPolicies) names += std::string(names.empty() ? "" : ", ") + name;
  return names;
}

ChosenPolicy choose_flashblock(const PolicyFlags& flags, const LoadedModel& model,
                               nlohmann::json settings) {
  FlashBlockOptions options;
  options.num_layers = model.config.num_layers;
  options.num_heads = model.config.num_heads;
  std::optional<int64_t> tau_of_file;
  std::string digest;
  if (!flags.reuse_file.empty()) {
    const ReuseModel this_model{model.config.num_layers, model.config.num_heads,
                                model.config.num_kv_heads, model.digest};
    const ReuseFile file = read_reuse_file(flags.reuse_file, this_model);
    options.reuse = file.reuse;
    tau_of_file = file.tau;
    digest = sha256_hex(to_json(file));
  }
  options.tau = reuse_tau(flags.tau, tau_of_file);
  settings["tau"] = options.tau;
  settings["reuse_file"] = flags.reuse_file;
  settings["reuse_digest"] = digest;
  // A file name need not be UTF-8.
  return {make_flashblock_policy(std::move(options)),
          settings.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
}

ChosenPolicy choose_selection(const PolicyFlags& flags, const LoadedModel& model,
                              nlohmann::json settings) {
  const SelectionOptions options = selection_options(flags, model.config.num_layers);
  if (flags.k.has_value()) settings["k"] = options.k;
  if (flags.density.has_value()) settings["density"] = options.density;
  settings["exact_layers"] = options.exact_layers;
  ChosenPolicy chosen;
  if (flags.policy.starts_with("mage")) {
    chosen.policy = make_mage_policy(options);
  } else if (flags.policy.starts_with("sparsed")) {
    settings["per_block"] = flags.per_block;
    chosen.policy =
        make_sparsed_policy(options, flags.per_block ? SparseDScope::block : SparseDScope::run);
  } else if (flags.policy == "quest") {
    settings["page"] = flags.page;
    chosen.policy = make_quest_policy(options, flags.page);
  } else if (flags.policy == "oracle") {
    chosen.policy = make_oracle_policy(options);
  } else if (flags.policy == "random") {
    settings["policy_seed"] = flags.policy_seed;
    chosen.policy = make_random_policy(options, flags.policy_seed);
  } else {
    chosen.policy = make_recent_policy(options);
  }
  chosen.settings = settings.dump();
  return chosen;
}

}  // namespace

void add_policy_flags(CLI::App& app, PolicyFlags& flags) {
  CLI::App* group = app.add_option_group("Attention policy");
  group->add_option("--policy", flags.policy, known_policies())->capture_default_str();
  group->add_option("--k", flags.k, "Sparse policies: external keys that a KV head reads at a step")
      ->check(whole_number(1));
  group
      ->add_option("--density", flags.density, "Sparse policies: the same as a share of the prefix")
      ->check(real_number(0.0, 1.0, false));
  group
      ->add_option("--exact-layers", flags.exact_layers,
                   "Sparse policies: the first layers read everything (MAGE: 2)")
      ->check(whole_number(0))
      ->capture_default_str();
  group->add_option("--page", flags.page, "quest: keys per page")
      ->check(whole_number(1))
      ->capture_default_str();
  group->add_flag("--per-block", flags.per_block,
                  "sparsed: sets from each block's first step instead of one set for the run");
  group->add_option("--policy-seed", flags.policy_seed, "random: seed of the draws")
      ->check(whole_number(0, std::numeric_limits<uint64_t>::max()))
      ->capture_default_str();
  group
      ->add_option("--tau", flags.tau,
                   "flashblock: reuse when fewer than tau tokens changed (default: the file's of "
                   "--reuse, else 2)")
      ->check(whole_number(1));
  group->add_option("--reuse", flags.reuse_file, "flashblock: calibration file with the heads");
}

void check_policy_flags(const CLI::App& app, const PolicyFlags& flags) {
  const std::string& name = flags.policy;
  if (std::find(kPolicies.begin(), kPolicies.end(), name) == kPolicies.end()) {
    throw UsageError(fmt::format("--policy: expected one of {}, got '{}'", known_policies(), name));
  }
  const bool sparse = is_sparse(flags);
  refuse_idle(app, "--tau", name == "flashblock", "--policy flashblock");
  refuse_idle(app, "--reuse", name == "flashblock", "--policy flashblock");
  refuse_idle(app, "--k", sparse, "a sparse policy");
  refuse_idle(app, "--density", sparse, "a sparse policy");
  refuse_idle(app, "--exact-layers", sparse, "a sparse policy");
  refuse_idle(app, "--page", name == "quest", "--policy quest");
  refuse_idle(app, "--per-block", name.starts_with("sparsed"), "--policy sparsed");
  refuse_idle(app, "--policy-seed", name == "random", "--policy random");
  if (sparse && flags.k.has_value() == flags.density.has_value()) {
    throw UsageError(
        fmt::format("--policy {}: expected either --k or --density, got {}. HINT: "
                    "--k 512 reads 512 keys, --density 0.3 three tenths of the prefix",
                    name, flags.k.has_value() ? "both" : "none"));
  }
  if (name == "sparsed+flashblock" && !flags.per_block) {
    throw UsageError(
        "--policy sparsed+flashblock: expected --per-block, got none. HINT: the residual belongs "
        "to the queries of one block, so the sets must too");
  }
}

bool is_sparse(const PolicyFlags& flags) {
  return flags.policy != "exact" && flags.policy != "flashblock";
}

SelectionOptions selection_options(const PolicyFlags& flags, int64_t num_layers) {
  SelectionOptions options;
  options.num_layers = num_layers;
  options.k = flags.k.value_or(0);
  options.density = flags.density.value_or(0.0);
  options.exact_layers = flags.exact_layers;
  options.residual = flags.policy.ends_with("+flashblock");
  options.overlap = !flags.no_overlap;
  return options;
}

PolicyFlags policy_from_text(std::string_view text) {
  PolicyFlags flags;
  CLI::App app;  // the same options, so the same rules
  app.set_help_flag();
  add_policy_flags(app, flags);
  try {
    std::vector<std::string> arguments;
    size_t begin = 0;
    while (begin <= text.size()) {
      const size_t end = std::min(text.find(',', begin), text.size());
      const std::string part(text.substr(begin, end - begin));
      const bool name = begin == 0;
      begin = end + 1;
      arguments.push_back((name ? "--policy=" : "--") + part);
      const std::string option = "--" + part.substr(0, part.find('='));
      if (name || (option != "--policy" && app.get_option_no_throw(option) != nullptr)) continue;
      throw UsageError(fmt::format(
          "expected a name and options such as k=64, density=0.3, page=16, exact-layers=2, "
          "per-block, tau=2 or reuse=FILE, got '{}'",
          part));
    }
    std::vector<const char*> words{"blockscope"};
    for (const std::string& argument : arguments) words.push_back(argument.c_str());
    refuse_empty_values(static_cast<int>(words.size()), words.data());
    std::reverse(arguments.begin(), arguments.end());  // CLI11 takes the last one first
    app.parse(arguments);
    check_policy_flags(app, flags);
  } catch (const CLI::ParseError& error) {
    throw UsageError(fmt::format("policy '{}': {}", text, words_of(error)));
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("policy '{}': {}", text, error.what()));
  }
  return flags;
}

std::string policy_text(const PolicyFlags& flags) {
  std::string text = flags.policy;
  const PolicyFlags defaults;
  const auto add = [&text](const char* name, const auto& value) {
    text += fmt::format(",{}={}", name, value);
  };
  if (flags.tau.has_value()) add("tau", *flags.tau);
  if (!flags.reuse_file.empty()) add("reuse", flags.reuse_file);
  if (flags.k.has_value()) add("k", *flags.k);
  if (flags.density.has_value()) add("density", *flags.density);
  if (flags.exact_layers != defaults.exact_layers) add("exact-layers", flags.exact_layers);
  if (flags.policy == "quest") add("page", flags.page);
  if (flags.per_block) text += ",per-block";
  if (flags.policy_seed != defaults.policy_seed) add("policy-seed", flags.policy_seed);
  return text;
}

void check_policy_fits(const PolicyFlags& flags, const DecodeOptions& options,
                       std::string_view option) {
  const auto refuse = [&](const std::string& why) {
    throw UsageError(fmt::format("{} {}: {}", option, policy_text(flags), why));
  };
  if (options.bidirectional && flags.policy == "quest") {
    refuse(
        "keeps the bounds of committed keys, and a bidirectional model's keys change. HINT: take "
        "another policy");
  }
  if (options.bidirectional && flags.policy.starts_with("sparsed") && !flags.per_block) {
    refuse(
        "holds its keys for the whole run, and the keys outside a block are others for every "
        "block. HINT: --per-block");
  }
  const CacheKind cache = options.cache.kind;
  if ((cache == CacheKind::kDllm || cache == CacheKind::kD2) && flags.policy != "exact") {
    refuse(fmt::format(
        "chooses for whole blocks, and --cache {} computes single rows of them. HINT: --cache "
        "none, prefix or dual",
        cache_name(cache)));
  }
  if (options.block_cache() && flags.policy != "exact") {
    refuse(
        "works on whole blocks, and --cache block computes single sub-blocks of them. HINT: leave "
        "one of the two out");
  }
  const bool within_block = flags.policy == "flashblock" || flags.policy.starts_with("mage") ||
                            (flags.policy.starts_with("sparsed") && flags.per_block);
  if (!within_block || !options.autoregressive()) return;
  throw UsageError(fmt::format(
      "{} {}: does nothing without a block-diffusion model: token by token there are no steps to "
      "reuse between. HINT: take another policy, or a block-diffusion model",
      option, flags.policy));
}

ChosenPolicy choose_policy(const PolicyFlags& flags, const LoadedModel& model) {
  const nlohmann::json settings = {{"policy", flags.policy}};
  if (flags.policy == "exact") return {make_exact_policy(), settings.dump()};
  if (flags.policy == "flashblock") return choose_flashblock(flags, model, settings);
  return choose_selection(flags, model, settings);
}

}  // namespace blockscope
