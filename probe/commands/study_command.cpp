#include "probe/commands/study_command.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "command_line/interrupt.h"
#include "command_line/options.h"
#include "command_line/progress.h"
#include "command_line/standard_streams.h"
#include "decode_record/base/error.h"
#include "decode_record/base/sha256.h"
#include "decode_record/files/command_files.h"
#include "decode_record/interchange/reuse_file.h"
#include "probe/checkpoint/checkpoint.h"
#include "probe/commands/prediction_options.h"
#include "probe/commands/study_texts.h"
#include "probe/run/run_description.h"
#include "probe/strategies/strategy_table.h"
#include "probe/study/device_numbers.h"
#include "probe/study/prediction.h"
#include "probe/study/study.h"
#include "probe/study/study_store.h"
#include "probe/tasks/task_generator.h"

namespace blockscope {
namespace {

namespace fs = std::filesystem;

/// Options that only some studies use.
constexpr std::array kStudyOptions{
    "--k",          "--pages",        "--densities",   "--taus",     "--steps",       "--blocks",
    "--repeats",    "--exact-layers", "--policy-seed", "--backbone", "--depths",      "--tasks",
    "--contexts",   "--per-cell",     "--task-seed",   "--prompt",   "--prompts",     "--input-ids",
    "--policies",   "--metric",       "--limit",       "--chat",     "--no-thinking", "--caches",
    "--strategies", "--gamma",        "--lse-bound",   "--compare"};
/// Of a study of a trace, besides its own.
constexpr std::array kTraceOptions{"--output", "--force", "--no-figures", "--quiet"};
/// Those of kStudyOptions that generate prompts.
constexpr std::array kGeneratorOptions{"--tasks", "--contexts", "--per-cell", "--task-seed",
                                       "--depths"};

struct StudyFlags {
  std::string study;
  ModelFlags model;
  DecodingFlags decoding;
  StudyOptions options;
  std::string caches, strategies, policies;  // lists of choices
  bool resume = false;
  bool force = false;
  bool no_figures = false;
  bool quiet = false;
};

void check_flags(const CLI::App& command, const StudyFlags& flags) {
  if (!flags.options.predict.empty()) return check_prediction_flags(command, flags.study);
  refuse_without_prediction(command);
  const StudyInfo& info = study_by_name(flags.study);
  for (const std::string& option : given_options(command)) {
    const bool used = info.of_trace == nullptr ||
                      std::ranges::find(kTraceOptions, option) != kTraceOptions.end() ||
                      std::ranges::find(info.options, option) != info.options.end();
    refuse_idle(command, option, used,
                fmt::format("another study than {}, which takes a trace", info.name));
  }
  if (info.of_trace != nullptr) return;
  for (const char* option : kStudyOptions) {
    refuse_idle(command, option, std::ranges::find(info.options, option) != info.options.end(),
                fmt::format("another study than {}", info.name));
  }
  for (const char* option : kGeneratorOptions) {
    refuse_idle(command, option, flags.options.prompts.generated(),
                "generated prompts, which --prompt, --prompts and --input-ids replace");
  }
  for (const char* option : {"--gen-length", "--stop-id", "--no-stop"}) {
    refuse_idle(command, option, info.name != "time",
                "another study than time, which has --blocks");
  }
  refuse_idle_beside(command, "--denoising-steps", "--steps");
  refuse_idle(command, "--batch-size", info.name == "time",
              "study time: the others decode one prompt at a time");
  if (info.name == "caches") {
    refuse_idle_beside(command, "--cache", "--caches");
    refuse_idle_beside(command, "--strategy", "--strategies");
  } else {
    check_decoding_flags(flags.decoding);
  }
  const bool draws = info.name != "time" && !flags.options.prompts.generated();
  if (draws) check_prompt_flags(command, flags.options.prompts.given);
  for (const std::string& task : flags.options.prompts.tasks) task_from_name(task);
  if (flags.resume && flags.force) {
    throw UsageError("--resume and --force contradict each other: give one of them");
  }
}

bool heeds_times(const StudyInfo& info) {
  return info.name == "time" || info.name == "tau" || info.name == "caches";
}

/// Everything that decides the values of the cells.
nlohmann::json settings_of(const StudyFlags& flags, const StudyInfo& info, const LoadedModel& model,
                           const DecodeOptions& decode, const std::string& backbone_digest) {
  const StudyOptions& o = flags.options;
  nlohmann::json settings = {{"study", info.name},
                             {"model", model.digest},
                             {"dtype", flags.model.dtype},
                             {"gen_length", flags.decoding.gen_length},
                             {"k", o.set_sizes},
                             {"pages", o.pages},
                             {"densities", o.densities},
                             {"taus", o.taus},
                             {"steps", o.steps},
                             {"blocks", o.blocks},
                             {"repeats", o.repeats},
                             {"exact_layers", o.exact_layers},
                             {"policy_seed", o.policy_seed},
                             {"backbone", backbone_digest}};
  settings.update(nlohmann::json::parse(decoding_json(decode)));
  for (const std::string& policy : o.policies) {  // with the content of calibration files
    settings["policies"].push_back(
        nlohmann::json::parse(choose_policy(read_policy(policy), policy_model(model)).settings));
  }
  if (info.name == "caches") {
    settings["caches"] = o.caches;
    settings["default_caches"] = 2;  // 1: without blockd; counts up when a default changes
    settings["strategies"] = o.strategies;
    for (const std::string& strategy : o.strategies) {
      const std::string& file = read_strategy(strategy).frequencies_file;
      if (!file.empty()) settings["frequencies"].push_back(sha256_of_file(file));
    }
  }
  if (o.prompts.generated()) {
    settings["tasks"] = o.prompts.tasks;
    settings["contexts"] = o.prompts.contexts;
    settings["depths"] = o.prompts.depths;
    settings["per_cell"] = o.prompts.per_cell;
    settings["task_seed"] = o.prompts.task_seed;
  } else {
    const PromptFlags& given = o.prompts.given;
    settings["prompts"] = {given.file.empty() ? "" : sha256_of_file(given.file),
                           given.prompts,
                           given.input_ids,
                           given.metric,
                           given.limit,
                           given.chat,
                           given.no_thinking};
  }
  // If a study measures times, the number of threads belongs to its settings.
  if (heeds_times(info)) settings["threads"] = at::get_num_threads();
  if (!model.device.is_cpu()) settings["device"] = model.device.str();
  if (o.batch_size != 1) settings["batch_size"] = o.batch_size;
  return nlohmann::json::parse(
      settings.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void write_results(const StudyReport& report, const StudyInfo& info, const StudyFlags& flags,
                   const std::string& text, const GnuplotPlace& place, CommandFiles& files) {
  const bool replace = flags.resume || flags.force;
  const fs::path folder = flags.options.folder;
  std::vector<OutputFile> outputs;
  const auto write = [&](const std::string& name, const std::string& content) {
    outputs.push_back(files.open((folder / name).string(), replace));
    outputs.back().write(content);
  };
  if (!flags.no_figures) {
    const Gnuplot gnuplot(place);
    for (const Figure& figure : report.figures) {
      const RenderedFigure rendered = gnuplot.render(figure, {.svg = true, .pdf = true});
      write(figure.name + ".svg", rendered.svg);
      write(figure.name + ".pdf", rendered.pdf);
    }
  }
  write(info.name + ".csv", csv_text(report));
  write(info.name + ".txt", text);
  for (OutputFile& output : outputs) output.commit();
}

std::vector<nlohmann::json> measure(Study& study, StudyStore& store, const StudyInfo& info,
                                    const StudyFlags& flags) {
  const std::vector<std::string> cells = study.cells();
  Progress progress(flags.quiet);
  size_t done = 0;
  for (size_t i = 0; i < cells.size(); ++i, ++done) {
    progress.update(static_cast<double>(done) / static_cast<double>(cells.size()),
                    fmt::format("{} · {}/{} · {}", info.name, done, cells.size(), cells[i]));
    if (store.has(cells[i])) continue;
    const std::string safe =
        fmt::format("{} of {} cells are safe in {}. HINT: the same command with --resume goes on",
                    done, cells.size(), store.path());
    InterruptGuard::check(safe);
    nlohmann::json value;
    try {
      value = study.measure(i);
    } catch (const InterruptedError&) {
      throw InterruptedError(safe);
    }
    store.put(cells[i], std::move(value));
  }
  progress.clear();
  std::vector<nlohmann::json> values;
  for (const std::string& cell : cells) values.push_back(store.value(cell));
  return values;
}

/// Splits the lists of caches and strategies, and fills in what was not given.
void complete(StudyFlags& flags, const StudyInfo& info) {
  if (!flags.policies.empty()) {
    flags.options.policies = split_choices(flags.policies, names_of(policy_table()));
  }
  if (!flags.caches.empty()) {
    flags.options.caches = split_choices(flags.caches, names_of(cache_table()));
  }
  if (!flags.strategies.empty()) {
    flags.options.strategies = split_choices(flags.strategies, names_of(strategy_table()));
  }
  info.defaults(flags.options);
  std::ranges::sort(flags.options.set_sizes);
  flags.options.batch_size = flags.decoding.batch_size;
}

std::string cells_file(const StudyFlags& flags, const StudyInfo& info) {
  return (fs::path(flags.options.folder) / (info.name + ".cells.jsonl")).string();
}

void check_folder(const StudyFlags& flags, const StudyInfo& info) {
  check_meant_as_name(flags.options.folder);
  const fs::path folder = flags.options.folder;
  if (fs::exists(folder) && !fs::is_directory(folder)) {
    throw UsageError(fmt::format("-o: {}: expected a folder, got a file", folder.string()));
  }
  for (const char* ending : {".csv", ".txt"}) {
    check_output_name((folder / (info.name + ending)).string(), flags.resume || flags.force);
  }
}

CommandFiles inputs_of(const StudyFlags& flags, const Environment& environment) {
  CommandFiles files;
  files.reads(flags.options.prompts.given.file);
  for (const std::string& file : flags.decoding.files()) files.reads(file);
  for (const std::string& strategy : flags.options.strategies) {
    files.reads(read_strategy(strategy).frequencies_file);
  }
  reads_model(files, flags.model, environment);
  if (!flags.options.backbone.empty()) {
    reads_model(files, flags_of_backbone(flags.model, flags.options.backbone), environment);
  }
  return files;
}

void check_device(const StudyFlags& flags, const StudyInfo& info) {
  if (flags.model.device == "cpu" || !heeds_times(info) || info.name == "time") return;
  throw UsageError(fmt::format(
      "--device: study {} reports times of the parts of a pass, and on a GPU the host sees only "
      "launches. HINT: leave it out; study time times whole blocks on a GPU",
      info.name));
}

DecodeOptions block_diffusion_options(const CLI::App& command, const StudyFlags& flags,
                                      const LoadedModel& model) {
  const DecodeOptions decode = decode_options(flags.decoding, model);
  if (decode.autoregressive()) {
    throw UsageError(fmt::format(
        "study: {}: expected a block-diffusion model, got an autoregressive one: it has no "
        "denoising steps. HINT: --mask-token-id and --block-length",
        flags.model.model));
  }
  if (decode.canvas) {
    throw UsageError(fmt::format(
        "study: {}: expected a model with masks, got model_type \"{}\": studies don't support "
        "canvases of random tokens. HINT: verify, eval and analyze take it",
        flags.model.model, model.config.model_type));
  }
  check_decoding_fits(command, decode);
  return decode;
}

/// The backbone's digest; empty without --backbone.
std::string backbone_digest(const StudyFlags& flags, const Environment& environment) {
  if (flags.options.backbone.empty()) return "";
  return Checkpoint::open(
             resolve_model(flags.options.backbone, flags.model.revision, environment.hub).folder)
      .digest();
}

void make_output_folder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw Error(fmt::format("{}: can't be created: {}", folder, error.message()));
}

/// Makes the folder and reserves the files that measuring writes into it.
void make_folder(const StudyFlags& flags, const StudyInfo& info, const Study& study,
                 CommandFiles& files) {
  const fs::path folder = flags.options.folder;
  files.reserve(cells_file(flags, info), true);  // StudyStore checks an existing file
  for (const std::string& name : study.outputs()) {
    files.reserve((folder / name).string(), flags.resume || flags.force);
  }
  make_output_folder(flags.options.folder);
}

void run_prediction(StudyFlags flags, const Environment& environment, const GnuplotPlace& place) {
  const StudyInfo& info = prediction_info();
  complete(flags, info);
  if (!flags.no_figures) Gnuplot{place};
  check_folder(flags, info);
  CommandFiles files;
  if (!is_given_device(flags.options.predict)) files.reads(flags.options.predict);
  if (!flags.options.trace.empty()) files.reads_trace(flags.options.trace);
  const std::string folder = prediction_folder(flags.model, environment);
  if (!folder.empty()) files.reads_checkpoint(folder);
  const PredictionSetting setting = prediction_setting(flags.model, environment);
  const StudyReport report = predicted_report(flags.options, setting);
  make_output_folder(flags.options.folder);
  const std::string text = report_text(fmt::format("{} ({}): {} on {}\n", info.name, info.source,
                                                   setting.model, flags.options.predict),
                                       report);
  write_results(report, info, flags, text, place, files);
  say("{}", text);
}

void run_trace_study(StudyFlags flags, const GnuplotPlace& place) {
  const StudyInfo& info = study_by_name(flags.study);
  flags.options.trace = flags.model.model;
  if (!flags.no_figures) Gnuplot{place};
  check_folder(flags, info);
  CommandFiles files;
  files.reads_trace(flags.options.trace);
  files.reads(flags.options.compare);
  const StudyReport report = info.of_trace(flags.options);
  make_output_folder(flags.options.folder);
  const std::string text = report_text(
      fmt::format("{} ({}): {}\n", info.name, info.source, flags.options.trace), report);
  write_results(report, info, flags, text, place, files);
  say("{}", text);
}

void run_study(const CLI::App& command, StudyFlags flags, const Environment& environment,
               const GnuplotPlace& place) {
  const InterruptGuard guard;
  if (!flags.options.predict.empty()) return run_prediction(std::move(flags), environment, place);
  const StudyInfo& info = study_by_name(flags.study);
  if (info.of_trace != nullptr) return run_trace_study(std::move(flags), place);
  complete(flags, info);
  if (!flags.no_figures) Gnuplot{place};  // throws now, not after the run, if gnuplot is missing
  check_folder(flags, info);
  CommandFiles files = inputs_of(flags, environment);
  check_device(flags, info);
  const LoadedModel model = load_model(flags.model, environment);
  const DecodeOptions decode = block_diffusion_options(command, flags, model);
  const std::string backbone = backbone_digest(flags, environment);
  const std::optional<Tokenizer> tokenizer = load_tokenizer(model);
  const StudyInput input{model,         tokenizer.has_value() ? &*tokenizer : nullptr,
                         decode,        flags.decoding.gen_length,
                         flags.options, environment,
                         flags.model};
  const std::unique_ptr<Study> study = info.make(input);
  make_folder(flags, info, *study, files);
  StudyStore store(cells_file(flags, info), settings_of(flags, info, model, decode, backbone),
                   flags.resume, flags.force);
  const StudyReport report = study->report(measure(*study, store, info, flags));
  const std::string text =
      report_text(fmt::format("{} ({}): {}\n{}, B {}, gen length {}\n", info.name, info.source,
                              model.text(), strategy_text(decode.unmasking), decode.block_length(),
                              flags.decoding.gen_length),
                  report);
  write_results(report, info, flags, text, place, files);
  say("{}", text);
}

std::string study_names() {
  std::string names;
  for (const StudyInfo& info : all_studies()) names += (names.empty() ? "" : ", ") + info.name;
  return names;
}

std::string footer() {
  std::string text = "Studies:\n";
  for (const StudyInfo& info : all_studies()) {
    text += fmt::format("  {:<11} {} ({})\n", info.name, info.description, info.source);
  }
  return text +
         "Example: blockscope study needle models/needle --k 8,16,32 -o needle-study\n"
         "Example: blockscope study video video.h5 --compare compare.json -o video-study\n"
         "Example: blockscope study time trado-8b --predict a100 --tp 2 --batch-size 128 -o paper\n"
         "The folder gets NAME.txt, NAME.csv, the figures and NAME.cells.jsonl, from which "
         "--resume "
         "goes on.";
}

void add_study_options(CLI::App& command, StudyFlags& flags) {
  StudyOptions& options = flags.options;
  CLI::App* group = command.add_option_group("Study");
  const auto list = [&](const char* name, auto& value, const char* help) {
    return group->add_option(name, value, help)->delimiter(',');
  };
  list("--k", options.set_sizes, "Choose this many keys per set")->check(whole_number(1));
  list("--pages", options.pages, "Quest: use this many keys per page")->check(whole_number(1));
  list("--densities", options.densities, "residual: select these shares of the prefix")
      ->check(real_number(0.0, 1.0, false));
  list("--taus", options.taus, "tau, time: reuse if fewer tokens than this are counted")
      ->check(whole_number(1));
  group->add_option("--policies", flags.policies,
                    "needle, estimators, residual, time: also compare these; tau: try each tau "
                    "with these, such as "
                    "flashblock,flashblock,refresh=near,flashblock,bound=0.2,reuse=reuse.json");
  list("--steps", options.steps,
       "time: use this many denoising steps per block (default: --denoising-steps)")
      ->check(whole_number(1));
  group->add_option("--blocks", options.blocks, "time: decode this many blocks per run")
      ->check(whole_number(1, kMostPrompts))
      ->capture_default_str();
  group->add_option("--repeats", options.repeats, "tau, time: run every method this many times")
      ->check(whole_number(1, kMostPrompts))
      ->capture_default_str();
  group
      ->add_option("--exact-layers", options.exact_layers,
                   "Read all keys in this many first layers")
      ->check(whole_number(0))
      ->capture_default_str();
  group->add_option("--policy-seed", options.policy_seed, "Set the seed of random keys")
      ->check(whole_number(0, std::numeric_limits<uint64_t>::max()))
      ->capture_default_str();
  group->add_option("--caches", flags.caches,
                    "caches: compare these, such as none,d2cache,current_k=8 (default: all that "
                    "the model allows)");
  group->add_option("--strategies", flags.strategies,
                    "caches: use these strategies (default: low_confidence_static,threshold)");
  group->add_option("--backbone", options.backbone,
                    "stages: compare with this autoregressive checkpoint");
  group->add_option("--gamma", options.gamma, "video: let heads reuse above this similarity")
      ->check(real_number(-1.0, 1.0))
      ->capture_default_str();
  group
      ->add_option("--lse-bound", options.lse_bound,
                   "video: let no head reuse whose mean change of L_out is larger")
      ->check(real_number(0.0, kAnyReal))
      ->capture_default_str();
  group->add_option("--compare", options.compare,
                    "video: add what this file of blockscope.compare measured");
  add_prediction_options(*group, options);
}

void add_generated_options(CLI::App& command, StudyPromptFlags& flags) {
  CLI::App* generated = command.add_option_group("Generated prompts");
  generated->add_option("--tasks", flags.tasks, "Ask these kinds of question (default: needle)")
      ->delimiter(',');
  generated->add_option("--contexts", flags.contexts, "Use these context lengths in tokens")
      ->delimiter(',')
      ->check(whole_number(64, kMostContext));
  generated
      ->add_option("--depths", flags.depths,
                   "needle: place the needle at this many depths (default: 11)")
      ->check(whole_number(1, kMostPrompts));
  generated
      ->add_option("--per-cell", flags.per_cell,
                   "Generate this many prompts for each task, length and depth")
      ->check(whole_number(1, kMostPrompts));
  generated->add_option("--task-seed", flags.task_seed, "Set the seed of the prompts")
      ->check(whole_number(0, std::numeric_limits<uint64_t>::max()))
      ->capture_default_str();
}

}  // namespace

void add_study_command(CLI::App& app, const Environment& environment,
                       const GnuplotPlace& gnuplot_place) {
  auto flags = std::make_shared<StudyFlags>();
  flags->decoding.gen_length = 32;
  flags->decoding.separate_commits = true;
  flags->options.prompts.depths = 0;
  flags->options.prompts.per_cell = 0;
  CLI::App* command = app.add_subcommand("study", "Make a table or figure of the papers");
  command->footer(footer());
  command->add_option("study", flags->study, study_names())->required();
  add_model_flags(*command, flags->model);
  command->get_option("model")->description(
      "Checkpoint folder, or a model id in the local hub cache; video: a trace");
  add_decoding_flags(*command, flags->decoding);
  add_study_options(*command, *flags);
  add_generated_options(*command, flags->options.prompts);
  add_prompt_flags(*command, flags->options.prompts.given);
  command->add_option("-o,--output", flags->options.folder, "Write the results into this folder")
      ->required();
  command->add_flag("--resume", flags->resume, "Go on with a study that was cut off");
  command->add_flag("--force", flags->force, "Begin again and replace earlier results");
  command->add_flag("--no-figures", flags->no_figures, "Write only text and CSV, without gnuplot");
  command->add_flag("-q,--quiet", flags->quiet, "Print no progress");
  command->callback([flags, command, environment, gnuplot_place] {
    check_flags(*command, *flags);
    run_study(*command, *flags, environment, gnuplot_place);
  });
}

}  // namespace blockscope
