#include "probe/commands/verify_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "command_line/interrupt.h"
#include "command_line/options.h"
#include "command_line/progress.h"
#include "command_line/standard_streams.h"
#include "decode_record/base/error.h"
#include "decode_record/files/command_files.h"
#include "probe/commands/draft_comparison.h"
#include "probe/run/run_description.h"
#include "probe/strategies/strategy_table.h"
#include "probe/verify/verify_figure.h"
#include "probe/verify/verify_report.h"
#include "probe/verify/verify_run.h"
#include "probe/verify/verify_settings.h"

namespace blockscope {
namespace {

namespace fs = std::filesystem;

struct VerifyFlags {
  ModelFlags model;
  std::string draft;
  PromptFlags prompts;
  DecodingFlags decoding;
  SettingFlags setting;
  std::string policy;  // --policy and --against as text
  std::string against;
  std::vector<std::string> interventions;
  PolicyOptions reference;  // read from --against; exact without it
  std::optional<int64_t> asked_repeats;
  std::string output;
  std::string csv;
  std::string figures;
  bool json = false;
  bool force = false;
  bool quiet = false;

  /// One with --sweep: a sweep has dozens of settings, and its results are accuracy and KL.
  int64_t repeats() const { return asked_repeats.value_or(setting.sweep ? 1 : 3); }
};

PolicyOptions policy_of(std::string text, const std::vector<std::string>& interventions) {
  if (text.empty() && !interventions.empty()) text = "exact";
  if (text.empty()) {
    throw UsageError(
        "verify: expected --policy, got none. HINT: --policy mage,k=64, or --policy "
        "flashblock,reuse=reuse.json with the heads of a calibration file");
  }
  PolicyOptions policy = read_policy(text, interventions);
  if (policy.policy == "exact" && interventions.empty()) {
    throw UsageError(
        "--policy exact: does nothing, because every policy is compared with exact. HINT: name "
        "another policy, or leave --against out");
  }
  return policy;
}

/// Refuses options of policies: a drafted run has no policy.
void check_flags_with_draft(const CLI::App& command, const VerifyFlags& flags) {
  for (const char* option : {"--policy", "--intervene", "--regions", "--against", "--sweep",
                             "--also", "--taus", "--gammas", "--csv", "--figures"}) {
    refuse_idle_beside(command, option, "--draft");
  }
  check_draft_flags(command);
  check_decoding_flags(flags.decoding);
  check_prompt_flags(command, flags.prompts);
  refuse_idle(command, "--force", !flags.output.empty(), "-o");
}

/// Reads the policies and refuses combinations that make no sense.
void check_flags(const CLI::App& command, VerifyFlags& flags) {
  if (!flags.draft.empty()) return check_flags_with_draft(command, flags);
  flags.setting.policy = policy_of(flags.policy, flags.interventions);
  refuse_idle(command, "--regions", names_region(flags.setting.policy.interventions),
              "--intervene hide_keys,region=");
  refuse_idle(command, "--taus", flags.setting.sweep, "--sweep");
  refuse_idle(command, "--gammas", flags.setting.sweep, "--sweep");
  refuse_idle(command, "--also", flags.setting.sweep, "--sweep");
  check_decoding_flags(flags.decoding);
  check_prompt_flags(command, flags.prompts);
  check_setting_flags(flags.setting);
  if (!flags.against.empty()) flags.reference = read_policy(flags.against);
  refuse_idle(command, "--force",
              !flags.output.empty() || !flags.csv.empty() || !flags.figures.empty(),
              "-o, --csv or --figures");
}

/// The outputs, opened before the first pass: a result may take an hour.
struct VerifyOutputs {
  std::optional<OutputFile> json, csv;
  std::vector<OutputFile> figures;  // SVG and PDF of each of kVerifyFigures
};

void open_figures(const VerifyFlags& flags, const GnuplotPlace& place, CommandFiles& files,
                  VerifyOutputs& outputs) {
  if (flags.figures.empty()) return;
  Gnuplot{place};  // throws now, not after the run, if gnuplot is missing
  if (fs::exists(flags.figures) && !fs::is_directory(flags.figures)) {
    throw UsageError(fmt::format("--figures: {}: expected a folder, got a file", flags.figures));
  }
  std::error_code error;
  fs::create_directories(flags.figures, error);
  if (error) throw Error(fmt::format("{}: can't be created: {}", flags.figures, error.message()));
  for (const char* name : kVerifyFigures) {
    for (const char* ending : {".svg", ".pdf"}) {
      const fs::path path = fs::path(flags.figures) / (std::string(name) + ending);
      outputs.figures.push_back(files.open(path.string(), flags.force));
    }
  }
}

VerifyOutputs open_outputs(const VerifyFlags& flags, const GnuplotPlace& place,
                           const Environment& environment) {
  CommandFiles files;
  files.reads(flags.setting.policy.reuse_file);
  files.reads(flags.reference.reuse_file);
  files.reads(flags.setting.also);
  files.reads(flags.prompts.file);
  files.reads(flags.prompts.regions);
  for (const Intervention& one : flags.setting.policy.interventions) files.reads_trace(one.trace);
  for (const std::string& file : flags.decoding.files()) files.reads(file);
  reads_model(files, flags.model, environment);
  VerifyOutputs outputs;
  if (!flags.output.empty()) outputs.json = files.open(flags.output, flags.force);
  if (!flags.csv.empty()) outputs.csv = files.open(flags.csv, flags.force);
  open_figures(flags, place, files, outputs);
  return outputs;
}

/// Draws the figures that this result has. The files of the other figures are never committed.
std::vector<OutputFile*> draw_figures(VerifyOutputs& outputs, const std::vector<Figure>& figures,
                                      const GnuplotPlace& place) {
  std::vector<OutputFile*> drawn;
  if (outputs.figures.empty()) return drawn;
  const Gnuplot gnuplot(place);
  for (const Figure& figure : figures) {
    const auto at = std::ranges::find(kVerifyFigures, figure.name) - kVerifyFigures.begin();
    const RenderedFigure rendered = gnuplot.render(figure, {.svg = true, .pdf = true});
    for (const auto& [offset, text] : {std::pair{0, &rendered.svg}, std::pair{1, &rendered.pdf}}) {
      drawn.push_back(&outputs.figures.at(static_cast<size_t>(2 * at + offset)));
      drawn.back()->write(*text);
    }
  }
  return drawn;
}

std::string decoding_line(const DecodingFlags& flags, const DecodeOptions& decode) {
  return fmt::format(
      "{}, B {}, {}, gen length {}, {}, seed {}", strategy_text(decode.unmasking),
      decode.block_length(), steps_text(decode.unmasking), flags.gen_length,
      decode.canvas ? "drawn at a falling temperature" : sampling_text(flags.sampling),
      flags.sampling.seed);
}

VerifyFacts facts_of(const VerifyFlags& flags, const LoadedModel& model,
                     const DecodeOptions& decode, const std::vector<RunPrompt>& prompts) {
  VerifyFacts facts = facts_of(flags.prompts.file, model, prompts);
  facts.decoding = decoding_line(flags.decoding, decode);
  facts.batch_size = flags.decoding.batch_size;
  facts.repeats = flags.repeats();
  facts.block_length = decode.block_length();
  return facts;
}

void verify(const CLI::App& command, const VerifyFlags& flags, const Environment& environment,
            const GnuplotPlace& place) {
  const InterruptGuard guard;  // before the first output: a signal must not leave a partial one
  VerifyOutputs outputs = open_outputs(flags, place, environment);
  LoadedModel model = load_model(flags.model, environment);
  const DecodeOptions decode = decode_options(flags.decoding, model);
  check_decoding_fits(command, decode);
  check_policy_fits(flags.setting.policy, policy_site(decode), "--policy");
  check_policy_fits(flags.reference, policy_site(decode), "--against");
  note_shared_keys(flags.setting.policy, model);
  if (decode.autoregressive()) {
    throw UsageError(fmt::format(
        "verify: {}: expected a block-diffusion model, got an autoregressive one: it has no masked "
        "positions to compare predictions at. HINT: --mask-token-id and --block-length",
        flags.model.model));
  }
  const PolicySetting reference = policy_setting(flags.reference, model);
  const std::vector<PolicySetting> settings = policy_settings(flags.setting, model);
  const std::optional<Tokenizer> tokenizer = load_tokenizer(model);
  const Tokenizer* tokenizer_or_null = tokenizer.has_value() ? &*tokenizer : nullptr;
  const std::vector<RunPrompt> prompts =
      load_prompts(flags.prompts, model, tokenizer_or_null, flags.decoding.gen_length, decode);
  check_regions(flags.setting.policy.interventions, prompts.front().request.regions);

  InterruptGuard::check();
  Progress progress(flags.quiet);
  const VerifyInput input{
      model, decode, prompts, tokenizer_or_null, flags.decoding.batch_size, flags.repeats()};
  const VerifyResult result =
      verify_policies(input, reference, settings,
                      [&](double done, const std::string& text) { progress.update(done, text); });
  progress.clear();

  const VerifyFacts facts = facts_of(flags, model, decode, prompts);
  const std::string json = verify_json(result, facts);
  std::vector<OutputFile*> written =
      draw_figures(outputs, verify_figures(result, facts.block_length), place);
  if (outputs.json) {
    outputs.json->write(json);
    written.push_back(&*outputs.json);
  }
  if (outputs.csv) {
    outputs.csv->write(verify_csv(result, facts));
    written.push_back(&*outputs.csv);
  }
  InterruptGuard::check();
  for (OutputFile* output : written) output->commit();
  if (flags.json) {
    say("{}", json);
  } else {
    say("{}{}{}", detail_text(result, facts), sweep_text(result), verdict_text(result));
  }
}

std::vector<double> scores_of(const DraftSide& side, const DraftComparison& run) {
  const Tokenizer* tokenizer = run.tokenizer ? &*run.tokenizer : nullptr;
  std::vector<double> scores;
  for (size_t i = 0; i < run.prompts.size(); ++i) {
    const RunPrompt& prompt = run.prompts[i];
    const std::string text = generated_text(side.prompts[i].generated, run.alone, tokenizer);
    scores.push_back(prompt.metric ? score(*prompt.metric, text, prompt.answers)
                                   : std::numeric_limits<double>::quiet_NaN());
  }
  return scores;
}

void verify_draft(const CLI::App& command, const VerifyFlags& flags,
                  const Environment& environment) {
  const InterruptGuard guard;  // before the output: a signal must not leave a partial one
  CommandFiles files;
  files.reads(flags.prompts.file);
  reads_model(files, flags.model, environment);
  files.reads_checkpoint(draft_folder(flags.draft, environment));
  std::optional<OutputFile> output;
  if (!flags.output.empty()) output = files.open(flags.output, flags.force);
  const DraftComparison run = compare_with_draft({command,
                                                  flags.model,
                                                  flags.draft,
                                                  flags.prompts,
                                                  flags.decoding,
                                                  {},
                                                  flags.repeats(),
                                                  flags.quiet},
                                                 environment);
  DraftVerification result;
  result.measured = measured_of(run.runs, run.prompts, run.alone).front();
  for (const TokenDifference& difference : result.measured.differences) {
    const std::vector<int64_t>& alone = run.runs.alone.prompts[difference.prompt].generated;
    result.ties.push_back(find_tie(run.target, run.alone, run.prompts[difference.prompt].request,
                                   alone, difference,
                                   [] { return InterruptGuard::signal() != 0; }));
    InterruptGuard::check();
  }
  const DraftScores scores{scores_of(run.runs.alone, run),
                           scores_of(run.runs.drafted.front(), run)};
  result.scores = paired_scores(scores.alone, scores.drafted);
  const std::string json =
      draft_verify_json(result, run.runs, scores, run.facts, run.prompts, run.alone.stop_ids);
  if (output) output->write(json);
  InterruptGuard::check();
  if (output) output->commit();
  say("{}", flags.json ? json : draft_verify_text(result, run.facts, run.prompts));
}

}  // namespace

void add_verify_command(CLI::App& app, const Environment& environment,
                        const GnuplotPlace& gnuplot_place) {
  auto flags = std::make_shared<VerifyFlags>();
  flags->decoding.gen_length = 32;
  flags->decoding.separate_commits = true;
  CLI::App* command =
      app.add_subcommand("verify", "Measure what an attention policy or a draft saves and costs");
  command->footer(
      "Example: blockscope verify models/needle --policy mage,k=16 \\\n"
      "           --prompts models/needle/demo.jsonl --threads 1\n"
      "--policy flashblock,reuse=reuse.json measures a calibration file. With --sweep --figures\n"
      "DIR, verify also draws the accuracy against the saving. --against quest,k=64 compares two\n"
      "policies. verify TARGET --draft DRAFT compares decoding with and without the draft.\n"
      "Exit code 0 means that the measurement ran. The last lines say how good the result is.");
  add_model_flags(*command, flags->model);
  command->add_option("--draft", flags->draft,
                      "Compare decoding with this DFlash draft and with the model alone");
  add_policy_option(*command, flags->policy);
  add_intervene_option(*command, flags->interventions);
  command->add_option("--against", flags->against, "Compare with this policy instead of exact")
      ->option_text("POLICY");
  command->add_flag("--sweep", flags->setting.sweep,
                    "Also measure every tau with every gamma, masks from the file's similarities");
  command->add_option("--also", flags->setting.also,
                      "Also sweep the masks of this calibration file, such as one by effect");
  command->add_option("--taus", flags->setting.taus, "Sweep these values of tau")
      ->delimiter(',')
      ->check(whole_number(1))
      ->capture_default_str();
  command
      ->add_option(
          "--gammas", flags->setting.gammas,
          "Sweep these values of gamma (default: eight, evenly spaced in predicted saving)")
      ->delimiter(',')
      ->check(real_number(-1.0, 1.0));
  command
      ->add_option("--repeats", flags->asked_repeats,
                   "Decode freely with each side this often for the times (default: 3; --sweep: 1)")
      ->check(whole_number(1));
  add_prompt_flags(*command, flags->prompts);
  add_regions_option(*command, flags->prompts);
  add_decoding_flags(*command, flags->decoding);
  command->add_option("-o,--output", flags->output, "Write everything as JSON to this file");
  command->add_option("--csv", flags->csv, "Write one CSV line per setting to this file");
  command->add_option("--figures", flags->figures,
                      "Write the figures as SVG and PDF into this folder");
  command->add_flag("--json", flags->json, "Print the JSON instead of the text");
  command->add_flag("--force", flags->force, "Replace existing results");
  command->add_flag("-q,--quiet", flags->quiet, "Print no progress");
  command->callback([flags, command, environment, gnuplot_place] {
    check_flags(*command, *flags);
    if (flags->draft.empty()) {
      verify(*command, *flags, environment, gnuplot_place);
    } else {
      verify_draft(*command, *flags, environment);
    }
  });
}

}  // namespace blockscope
