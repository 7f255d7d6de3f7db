#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "decode_record/base/error.h"
#include "decode_record/base/index_set.h"
#include "probe/model/device.h"
#include "probe/policies/hidden_keys.h"
#include "probe/policies/intervention.h"

namespace blockscope {
namespace {

constexpr double kNoKeys = -std::numeric_limits<double>::infinity();

/// A list of indices: "0-3+7". Commas separate options.
ChoiceOption<Intervention> list_option(const char* name, std::vector<int64_t> Intervention::*member,
                                       int64_t first, const char* meaning) {
  ChoiceOption<Intervention> option;
  option.name = option.key = name;
  option.meaning = meaning;
  option.range =
      fmt::format("whole numbers from {}, such as {}-{}+{}", first, first, first + 2, first + 5);
  option.set = [=](Intervention& settings, const std::string& text) {
    std::string commas = text;
    std::replace(commas.begin(), commas.end(), '+', ',');
    settings.*member = parse_index_set(commas, name, first);
  };
  option.text = [=](const Intervention& s) { return fmt::format("{}", fmt::join(s.*member, "+")); };
  option.json = [=](const Intervention& s) {
    return (s.*member).empty() ? nlohmann::json() : nlohmann::json(s.*member);
  };
  return option;
}

/// Where an intervention can work: layers, heads of layers, or also in commit passes.
enum class Places : uint8_t { layers, heads, commits };

/// The options that say where an intervention works, then its own.
std::vector<ChoiceOption<Intervention>> where_and(std::vector<ChoiceOption<Intervention>> own,
                                                  Places places) {
  std::vector<ChoiceOption<Intervention>> options{
      list_option("layers", &Intervention::layers, 0, "layers; all without it"),
      list_option("steps", &Intervention::steps, 1, "denoising steps of a block; all without it"),
      list_option("blocks", &Intervention::blocks, 0, "blocks of a sequence; all without it")};
  if (places != Places::layers) {
    options.insert(options.begin() + 1,
                   list_option("heads", &Intervention::heads, 0, "query heads; all without it"));
  }
  if (places == Places::commits) {
    options.push_back(
        switch_option("commits", &Intervention::commits,
                      "also in commit passes, which store the keys that later blocks read"));
  }
  for (auto& option : own) options.push_back(std::move(option));
  return options;
}

InterventionEntry entry_of(ChoiceFacts facts, std::vector<ChoiceOption<Intervention>> own = {},
                           Places places = Places::commits) {
  InterventionEntry entry;
  static_cast<ChoiceFacts&>(entry) = std::move(facts);
  entry.options = where_and(std::move(own), places);
  return entry;
}

at::Tensor on(const at::Tensor& heads, const at::Tensor& like) {
  return on_device(heads, like.device());
}

/// No key on this side: A = 0, L = -inf.
void empty_side(at::Tensor& output, at::Tensor& lse, int64_t s, const at::Tensor& heads) {
  output[s].index_fill_(0, on(heads, output), 0.0);
  lse[s].index_fill_(0, on(heads, lse), kNoKeys);
}

bool drop_external(InterventionSite& site, int64_t s, const at::Tensor& heads) {
  if (site.context.sequences[static_cast<size_t>(s)].context_length == 0) return false;
  empty_side(site.parts.external, site.parts.lse_external, s, heads);
  if (site.parts.residual.defined()) {
    empty_side(site.parts.residual, site.parts.lse_residual, s, heads);
  }
  return true;
}

void drop_internal(InterventionSite& site, int64_t s, const at::Tensor& heads) {
  empty_side(site.parts.internal, site.parts.lse_internal, s, heads);
}

InterventionEntry drop_external_entry() {
  InterventionEntry entry = entry_of({"drop_external", "the heads attend only inside the block", "",
                                      "drop_external,layers=3,heads=0-2"});
  entry.apply = [](const Intervention&, InterventionSite& site, int64_t s,
                   const at::Tensor& heads) { return drop_external(site, s, heads); };
  entry.about_keys = true;
  return entry;
}

InterventionEntry drop_internal_entry() {
  InterventionEntry entry = entry_of(
      {"drop_internal", "the heads attend only outside the block", "", "drop_internal,layers=3"});
  entry.apply = [](const Intervention&, InterventionSite& site, int64_t s,
                   const at::Tensor& heads) {
    drop_internal(site, s, heads);
    return true;
  };
  entry.about_keys = true;
  return entry;
}

InterventionEntry drop_head_entry() {
  InterventionEntry entry = entry_of(
      {"drop_head", "the heads' output is 0, or its mean over the block's queries",
       "head ablation: Michel et al., arXiv 1905.10650", "drop_head,layers=3,heads=0-2"},
      {switch_option("mean", &Intervention::mean, "the mean over the queries instead of 0")});
  entry.apply = [](const Intervention& given, InterventionSite& site, int64_t s,
                   const at::Tensor& heads) {
    AttentionParts& parts = site.parts;
    const at::Tensor mean =
        given.mean ? parts.out[s].index_select(0, on(heads, parts.out)).to(at::kFloat).mean(1, true)
                   : at::Tensor();
    drop_external(site, s, heads);
    drop_internal(site, s, heads);
    if (given.mean) {
      const at::Tensor where = on(heads, parts.internal);
      parts.internal[s].index_copy_(
          0, where, mean.expand({heads.numel(), parts.internal.size(2), parts.internal.size(3)}));
      parts.lse_internal[s].index_fill_(0, where, 0.0);
    }
    return true;
  };
  return entry;
}

void check_size(const Intervention& given) {
  if (!given.by) throw UsageError("by: expected a number, got none");
}

InterventionEntry scale_entry() {
  InterventionEntry entry = entry_of(
      {"scale", "the heads' output is multiplied by a factor", "", "scale,by=0.5,layers=3"},
      {real_option("by", &Intervention::by, {-1e6, 1e6}, "the factor")});
  entry.apply = [](const Intervention& given, InterventionSite& site, int64_t s,
                   const at::Tensor& heads) {
    for (at::Tensor* output : {&site.parts.external, &site.parts.internal, &site.parts.residual}) {
      if (!output->defined()) continue;
      const at::Tensor where = on(heads, *output);
      (*output)[s].index_copy_(0, where, (*output)[s].index_select(0, where) * *given.by);
    }
    return *given.by != 1.0;
  };
  entry.check = check_size;
  return entry;
}

InterventionEntry noise_entry() {
  InterventionEntry entry = entry_of(
      {"noise", "Gaussian noise is added to the heads' output", "", "noise,by=0.1,layers=3"},
      {real_option("by", &Intervention::by, {0.0, 1e6, true},
                   "standard deviation, in root mean squares of the head's output"),
       whole_option("seed", &Intervention::seed, 0, "seed of the noise")});
  entry.apply = [](const Intervention& given, InterventionSite& site, int64_t s,
                   const at::Tensor& heads) {
    AttentionParts& parts = site.parts;
    const SequencePass& pass = site.context.sequences[static_cast<size_t>(s)];
    // The same noise for the same head and step, whatever else is in the batch.
    at::Tensor noise = at::empty({heads.numel(), parts.out.size(2), parts.out.size(3)}, at::kFloat);
    for (int64_t i = 0; i < heads.numel(); ++i) {
      uint64_t seed = given.seed ^ pass.prompt_hash;
      for (const int64_t part :
           {site.input.layer, heads[i].item<int64_t>(), pass.block, pass.step}) {
        seed = seed * 0x9e3779b97f4a7c15ULL + static_cast<uint64_t>(part) + 1;
      }
      at::Generator generator = at::detail::createCPUGenerator(seed);
      noise[i].normal_(0.0, 1.0, generator);
    }
    const at::Tensor where = on(heads, parts.out);
    const at::Tensor out = parts.out[s].index_select(0, where).to(at::kFloat);
    const at::Tensor size = out.square().mean({1, 2}, true).sqrt();
    noise = noise.to(out.device()) * size * *given.by;
    // Each side gets all of the noise, because their weights in the merge add up to 1.
    for (at::Tensor* output : {&parts.external, &parts.internal, &parts.residual}) {
      if (!output->defined()) continue;
      (*output)[s].index_copy_(0, where, (*output)[s].index_select(0, where) + noise);
    }
    return true;
  };
  entry.check = check_size;
  return entry;
}

InterventionEntry freeze_external_entry() {
  InterventionEntry entry = entry_of(
      {"freeze_external", "from a step on, the heads keep that step's external pair",
       "the reuse of FlashBlock, arXiv 2602.05305, section 4.2, without its rule",
       "freeze_external,from=2,layers=3"},
      {whole_option("from", &Intervention::from, 1, "step of a block whose pair is kept")});
  entry.watch = [](const Intervention& given, InterventionSite& site, int64_t s) {
    const SequencePass& pass = site.context.sequences[static_cast<size_t>(s)];
    if (pass.step > given.from) return;
    site.kept[{site.input.layer, pass.sequence}] = {pass.block, site.parts.external[s].clone(),
                                                    site.parts.lse_external[s].clone()};
  };
  entry.apply = [](const Intervention& given, InterventionSite& site, int64_t s,
                   const at::Tensor& heads) {
    const SequencePass& pass = site.context.sequences[static_cast<size_t>(s)];
    const auto found = site.kept.find({site.input.layer, pass.sequence});
    const bool early = pass.kind == PassKind::denoise && pass.step <= given.from;
    if (early || pass.context_length == 0 || found == site.kept.end() ||
        found->second.block != pass.block) {
      return false;
    }
    AttentionParts& parts = site.parts;
    const KeptPair& pair = found->second;
    if (pair.external.sizes() != parts.external[s].sizes()) {
      throw UsageError(
          "intervene freeze_external: the passes of this run compute different rows of a block. "
          "HINT: use a --cache that computes whole blocks");
    }
    const at::Tensor where = on(heads, parts.external);
    parts.external[s].index_copy_(0, where, pair.external.index_select(0, where));
    parts.lse_external[s].index_copy_(0, where, pair.lse.index_select(0, where));
    return true;
  };
  return entry;
}

InterventionEntry hide_keys_entry() {
  ChoiceOption<Intervention> region;
  region.name = region.key = "region";
  region.meaning = "what stands at the position";
  region.range = word_range(std::vector<std::string>(kRegionNames.begin(), kRegionNames.end())) +
                 ", or a part of the prompt (--regions, roles of --chat)";
  region.set = [](Intervention& settings, const std::string& text) { settings.region = text; };
  region.text = [](const Intervention& s) { return s.region; };
  region.json = [](const Intervention& s) {
    return s.region.empty() ? nlohmann::json() : nlohmann::json(s.region);
  };
  InterventionEntry entry = entry_of(
      {"hide_keys", "the heads don't see some keys: one of positions, region, token, top and sinks",
       "sinks: Rulli et al., Attention Sinks in Diffusion Language Models",
       "hide_keys,region=first"},
      {list_option("positions", &Intervention::positions, 0, "absolute positions"), region,
       whole_option("token", &Intervention::token, 0, "token of the prompt, wherever it stands"),
       whole_option("top", &Intervention::top, 1, "number of keys with the largest mean weight"),
       real_option("sinks", &Intervention::sinks, {0.0, 1e6, true},
                   "keys outside the block with more than this times the mean weight")});
  entry.check = [](const Intervention& given) {
    const int chosen = (given.positions.empty() ? 0 : 1) + (given.region.empty() ? 0 : 1) +
                       (given.token ? 1 : 0) + (given.top ? 1 : 0) + (given.sinks ? 1 : 0);
    if (chosen == 1) return;
    throw UsageError(
        fmt::format("expected one of positions, region, token, top and sinks, got {}. HINT: "
                    "hide_keys,region=first",
                    chosen == 0 ? "none" : "several"));
  };
  entry.apply = hide_keys;
  entry.about_keys = true;
  entry.comes_first = true;
  return entry;
}

/// An intervention with values of another run. The trace must have the same prompts, and the rows
/// of the chosen steps.
InterventionEntry patch_entry(const char* name, const char* meaning, const char* example,
                              std::vector<Field> needs, Places places = Places::heads) {
  ChoiceOption<Intervention> trace;
  trace.name = trace.key = "trace";
  trace.meaning = "trace of the other run, with the same prompts and block length";
  trace.range = "a file";
  trace.set = [](Intervention& settings, const std::string& text) { settings.trace = text; };
  trace.text = [](const Intervention& s) { return s.trace; };
  trace.json = [](const Intervention& s) { return nlohmann::json(s.trace); };
  InterventionEntry entry =
      entry_of({name, meaning, "activation patching: Meng et al., arXiv 2202.05262", example},
               {std::move(trace)}, places);
  entry.needs = std::move(needs);
  entry.check = [](const Intervention& given) {
    if (given.trace.empty()) throw UsageError("trace: expected the file of a trace, got none");
  };
  return entry;
}

/// Puts one side of the recorded pass in place of this one.
void patch_side(const InterventionSite& site, int64_t s, const at::Tensor& heads, Field output,
                Field lse, at::Tensor& into, at::Tensor& lse_into) {
  const SequencePass& pass = site.context.sequences[static_cast<size_t>(s)];
  const auto put = [&](Field field, at::Tensor& target) {
    const at::Tensor values = site.source->of_heads(field, pass, site.input.layer, heads);
    if (values.size(1) != target.size(2)) {
      throw UsageError(
          "intervene: the pass computes a part of a block. HINT: use a --cache that computes whole "
          "blocks");
    }
    target[s].index_copy_(0, on(heads, target), values.to(target.device()));
  };
  put(output, into);
  put(lse, lse_into);
}

void patch_external(InterventionSite& site, int64_t s, const at::Tensor& heads) {
  AttentionParts& parts = site.parts;
  patch_side(site, s, heads, Field::attention_external, Field::attention_lse_external,
             parts.external, parts.lse_external);
  if (parts.residual.defined()) empty_side(parts.residual, parts.lse_residual, s, heads);
}

InterventionEntry patch_external_entry() {
  InterventionEntry entry = patch_entry(
      "patch_external", "the heads get the external pair of another run at the same step",
      "patch_external,trace=other.h5,layers=3",
      {Field::attention_external, Field::attention_lse_external});
  entry.apply = [](const Intervention&, InterventionSite& site, int64_t s,
                   const at::Tensor& heads) {
    patch_external(site, s, heads);
    return true;
  };
  return entry;
}

InterventionEntry patch_head_entry() {
  InterventionEntry entry =
      patch_entry("patch_head", "the heads' output is that of another run at the same step",
                  "patch_head,trace=other.h5,layers=3,heads=0",
                  {Field::attention_external, Field::attention_lse_external,
                   Field::attention_internal, Field::attention_lse_internal});
  entry.apply = [](const Intervention&, InterventionSite& site, int64_t s,
                   const at::Tensor& heads) {
    patch_external(site, s, heads);
    patch_side(site, s, heads, Field::attention_internal, Field::attention_lse_internal,
               site.parts.internal, site.parts.lse_internal);
    return true;
  };
  return entry;
}

InterventionEntry patch_hidden_entry() {
  InterventionEntry entry =
      patch_entry("patch_hidden", "the input of the layers is that of another run at the same step",
                  "patch_hidden,trace=other.h5,layers=3", {Field::hidden}, Places::layers);
  entry.hidden = [](const PatchSource& source, const SequencePass& pass, int64_t layer) {
    return source.hidden(pass, layer);
  };
  return entry;
}

}  // namespace

const std::vector<InterventionEntry>& intervention_table() {
  static const std::vector<InterventionEntry> table{
      drop_external_entry(),   drop_internal_entry(), drop_head_entry(), hide_keys_entry(),
      freeze_external_entry(), scale_entry(),         noise_entry(),     patch_external_entry(),
      patch_head_entry(),      patch_hidden_entry()};
  return table;
}

bool names_region(const std::vector<Intervention>& interventions) {
  return std::ranges::any_of(interventions, [](const auto& one) { return !one.region.empty(); });
}

void check_regions(const std::vector<Intervention>& interventions, const PromptRegions& regions) {
  std::vector<std::string> names = regions.names;
  if (names.empty()) names.assign(kRegionNames.begin(), kRegionNames.end());
  for (const Intervention& given : interventions) {
    if (given.region.empty() || std::ranges::find(names, given.region) != names.end()) continue;
    throw UsageError(
        fmt::format("intervene {}: region: expected one of {}, got \"{}\". HINT: --regions names "
                    "parts of the prompts",
                    intervention_text(given), fmt::join(names, ", "), given.region));
  }
}

const InterventionEntry& intervention_entry(const Intervention& intervention) {
  return entry_named(kInterveneKind, intervention_table(), intervention.what, intervention.what);
}

std::string shared_keys_text(const Intervention& intervention, int64_t num_heads,
                             int64_t num_kv_heads) {
  if (!intervention_entry(intervention).about_keys || intervention.heads.empty()) return "";
  const int64_t group = num_heads / num_kv_heads;
  std::vector<std::string> shared;
  for (int64_t kv_head = 0; kv_head < num_kv_heads; ++kv_head) {
    std::vector<int64_t> changed, others;
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      (std::ranges::binary_search(intervention.heads, head) ? changed : others).push_back(head);
    }
    if (changed.empty() || others.empty()) continue;
    shared.push_back(fmt::format("KV head {} (changes {}, leaves {})", kv_head,
                                 fmt::join(changed, "+"), fmt::join(others, "+")));
  }
  if (shared.empty()) return "";
  return fmt::format("--intervene {}: changes some of the heads that share keys and values: {}",
                     intervention_text(intervention), fmt::join(shared, ", "));
}

std::string intervention_text(const Intervention& intervention) {
  return choice_text(intervention_entry(intervention), intervention);
}

}  // namespace blockscope
