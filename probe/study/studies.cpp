#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "decode_record/base/error.h"
#include "probe/study/study.h"

namespace blockscope {
namespace {

const std::vector<std::string> kPromptOptions{
    "--prompt",      "--prompts", "--input-ids", "--metric",   "--limit",    "--chat",
    "--no-thinking", "--tasks",   "--contexts",  "--per-cell", "--task-seed"};

std::vector<std::string> with_prompts(std::vector<std::string> options) {
  options.insert(options.end(), kPromptOptions.begin(), kPromptOptions.end());
  return options;
}

template <class T>
void fill(std::vector<T>& option, std::vector<T> value) {
  if (option.empty()) option = std::move(value);
}

void prompt_defaults(StudyOptions& options, std::vector<int64_t> contexts, int64_t per_cell) {
  fill(options.prompts.tasks, {"needle"});
  fill(options.prompts.contexts, std::move(contexts));
  if (options.prompts.per_cell == 0) options.prompts.per_cell = per_cell;
  if (options.prompts.depths == 0) options.prompts.depths = 1;
}

}  // namespace

const std::vector<StudyInfo>& all_studies() {
  static const std::vector<StudyInfo> studies{
      {"union", "How many keys the tokens of a block need together, and what that costs Quest",
       "MAGE, Fig. 1", with_prompts({"--k", "--pages"}),
       [](StudyOptions& options) {
         fill(options.set_sizes, {32, 64, 128, 256});
         fill(options.pages, {16, 8, 4, 2});
         prompt_defaults(options, {1024}, 10);
       },
       make_union_study},
      {"stages", "Five stages from predictions to key sets, for a model and its backbone",
       "MAGE, Fig. 2 and Table 2", with_prompts({"--k", "--backbone"}),
       [](StudyOptions& options) {
         fill(options.set_sizes, {32, 64, 128});
         prompt_defaults(options, {1024}, 10);
       },
       make_stages_study},
      {"estimators", "How good the key sets of every method are: EstAcc, recall, covered, error",
       "MAGE, Fig. 3",
       with_prompts({"--k", "--pages", "--exact-layers", "--policy-seed", "--policies"}),
       [](StudyOptions& options) {
         fill(options.set_sizes, {32, 64, 128, 256});
         fill(options.pages, {16, 8, 4, 2});
         prompt_defaults(options, {1024}, 10);
       },
       make_estimators_study},
      {"needle", "Accuracy by method, set size, context length and depth",
       "MAGE, Table 3 and Fig. 4",
       with_prompts(
           {"--k", "--pages", "--exact-layers", "--policy-seed", "--depths", "--policies"}),
       [](StudyOptions& options) {
         fill(options.set_sizes, {32, 64, 128, 256});
         fill(options.pages, {16});
         if (options.prompts.depths == 0)
           options.prompts.depths = options.prompts.generated() ? 11 : 1;
         prompt_defaults(options, {256, 512, 1024}, 2);
       },
       make_needle_study},
      {"knockout", "Effect of taking away each head, its prefix, its changes, regions and sinks",
       "Michel et al., arXiv 1905.10650, for the steps of a block-diffusion model",
       with_prompts({}), [](StudyOptions& options) { prompt_defaults(options, {256}, 20); },
       make_knockout_study},
      {"residual", "SparseD with and without the attention over unselected keys, by density",
       "FlashBlock, Tables 2 and 3", with_prompts({"--densities", "--exact-layers", "--policies"}),
       [](StudyOptions& options) {
         fill(options.densities, {0.2, 0.3, 0.4});
         prompt_defaults(options, {512}, 20);
       },
       make_residual_study},
      {"tau", "Accuracy, reads and time of a step by tau and context length",
       "FlashBlock, Table 4 and Fig. 3", with_prompts({"--taus", "--policies", "--repeats"}),
       [](StudyOptions& options) {
         fill(options.policies, {"flashblock"});
         fill(options.taus, {1, 2, 3, 4});
         prompt_defaults(options, {256, 512, 1024}, 10);
       },
       make_tau_study},
      {"caches", "Accuracy, computed rows and speed of every cache with every strategy",
       "d2Cache, Table 1; Fast-dLLM, Table 1", with_prompts({"--caches", "--strategies"}),
       [](StudyOptions& options) {
         fill(options.strategies, {"low_confidence_static", "threshold"});
         prompt_defaults(options, {256}, 10);
       },
       make_caches_study},
      {"time",
       "Time per output block by method, context length and steps per block",
       "MAGE, Figs. 5 to 7",
       {"--k", "--pages", "--taus", "--contexts", "--steps", "--blocks", "--repeats",
        "--exact-layers", "--policy-seed", "--policies"},
       [](StudyOptions& options) {
         fill(options.set_sizes, {1024});
         fill(options.pages, {16});
         fill(options.taus, {2});
         fill(options.prompts.contexts, {8192, 32768});
       },
       make_time_study},
      {"video",
       "Similarity by layer and head, masks by step and attention's work, from a video's trace",
       "FlashBlock, Fig. 5 and Table 5",
       {"--gamma", "--lse-bound", "--compare"},
       [](StudyOptions&) {},
       nullptr,
       video_report}};
  return studies;
}

const StudyInfo& study_by_name(const std::string& name) {
  const std::vector<StudyInfo>& studies = all_studies();
  const auto found = std::ranges::find(studies, name, &StudyInfo::name);
  if (found != studies.end()) return *found;
  std::string known;
  for (const StudyInfo& study : studies) known += (known.empty() ? "" : ", ") + study.name;
  throw UsageError(fmt::format("study: expected one of {}, got '{}'", known, name));
}

PromptStudy::PromptStudy(const StudyInput& input)
    : input_(input),
      prompts_(study_prompts(input.options.prompts, input.model, input.tokenizer, input.gen_length,
                             input.decode)) {}

std::vector<std::string> PromptStudy::cells() const {
  std::vector<std::string> names;
  for (const StudyPrompt& prompt : prompts_) names.push_back(prompt.prompt.name);
  return names;
}

std::vector<StudyMethod> named_methods(const StudyOptions& options,
                                       const std::vector<int64_t>& set_sizes,
                                       const std::vector<StudyMethod>& others) {
  std::vector<StudyMethod> methods;
  const auto add = [&](const std::string& label, const std::string& text, int64_t k) {
    StudyMethod method{label, read_policy(text), k};
    const PolicyEntry& entry = policy_entry(method.policy);
    if (entry.heeds("exact_layers") && method.policy.exact_layers == 0) {
      method.policy.exact_layers = options.exact_layers;
    }
    methods.push_back(std::move(method));
  };
  std::vector<std::string> labels;
  for (const StudyMethod& other : others) labels.push_back(other.name);
  for (const std::string& text : options.policies) {
    if (std::ranges::find(labels, text) != labels.end()) {
      throw UsageError(
          fmt::format("--policies: {}: the study has it already. HINT: leave it out", text));
    }
    labels.push_back(text);
    PolicyOptions named;
    const ChoiceText parts = split_choice("policy", text);
    named.policy = parts.name;
    const bool sized = std::ranges::any_of(parts.options, [](const auto& option) {
      return option.first == "k" || option.first == "density";
    });
    if (set_sizes.empty() || sized || !policy_entry(named).heeds("k")) {
      add(text, text, 0);
      continue;
    }
    for (const int64_t k : set_sizes) add(text, fmt::format("{},k={}", text, k), k);
  }
  return methods;
}

std::string percent_number(double share) {
  return std::isfinite(share) ? fmt::format("{:.1f}", 100.0 * share) : "-";
}

std::vector<std::string> tasks_of(const std::vector<StudyPrompt>& prompts) {
  std::vector<std::string> tasks;
  for (const StudyPrompt& prompt : prompts) {
    if (std::ranges::find(tasks, prompt.task) == tasks.end()) tasks.push_back(prompt.task);
  }
  return tasks;
}

NumberTable accuracy_by_task(const std::string& title, const std::vector<std::string>& names,
                             const std::vector<std::string>& tasks,
                             const std::vector<TaskTotals>& totals) {
  NumberTable table{{title}, {}};
  for (const std::string& task : tasks) table.header.push_back(task.empty() ? "prompts" : task);
  table.header.insert(table.header.end(), {"equal to exact", "keys not read"});
  for (size_t m = 0; m < names.size(); ++m) {
    std::vector<std::string>& row = table.rows.emplace_back(1, names[m]);
    MethodTotals all;
    for (const std::string& task : tasks) {
      const MethodTotals& total = totals[m].at(task);
      row.push_back(percent_number(total.accuracy()));
      all.add(total.sum);
    }
    row.push_back(percent_number(all.share_equal()));
    row.push_back(percent_number(all.saving()));
  }
  return table;
}

}  // namespace blockscope
