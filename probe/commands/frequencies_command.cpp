#include "probe/commands/frequencies_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "command_line/interrupt.h"
#include "command_line/progress.h"
#include "command_line/standard_streams.h"
#include "decode_record/base/error.h"
#include "decode_record/base/text.h"
#include "decode_record/files/command_files.h"
#include "probe/checkpoint/model_config.h"
#include "probe/run/frequencies_file.h"
#include "probe/run/run_flags.h"

namespace blockscope {
namespace {

namespace fs = std::filesystem;

struct FrequenciesFlags {
  std::string model;
  std::string revision = "main";
  std::vector<std::string> texts;
  std::string output;
  bool force = false;
  bool quiet = false;
};

void run_frequencies(const CLI::App& command, const FrequenciesFlags& flags,
                     const Environment& environment) {
  const InterruptGuard guard;  // before the output: a signal must not leave a partial one
  const ResolvedModel source = model_source({.model = flags.model,
                                             .revision = flags.revision,
                                             .asked_revision = command.get_option("--revision")},
                                            environment);
  CommandFiles files;
  int64_t total = 0;
  for (const std::string& text : flags.texts) {
    files.reads(text);
    std::error_code error;
    const auto size = fs::file_size(text, error);
    if (!error) total += static_cast<int64_t>(size);
  }
  files.reads_checkpoint(source.folder.string());
  OutputFile output = files.open(flags.output, flags.force);
  FrequencyCounts counts;
  counts.vocabulary = vocabulary_id(source.folder, load_model_config(source.folder).vocab_size);
  counts.counts.assign(static_cast<size_t>(counts.vocabulary.size), 0);
  const Tokenizer tokenizer = Tokenizer::from_directory(source.folder);
  Progress progress(flags.quiet);
  int64_t done = 0;
  for (const std::string& text : flags.texts) {
    int64_t here = 0;
    count_tokens(text, tokenizer, counts, [&](int64_t bytes) {
      here = bytes;
      progress.update(
          static_cast<double>(done + bytes) /
              static_cast<double>(std::max<int64_t>({total, done + bytes, 1})),
          fmt::format("{} of {} · {}", format_bytes(static_cast<double>(done + bytes)),
                      format_bytes(static_cast<double>(total)), plural(counts.tokens, "token")));
      InterruptGuard::check();
    });
    done += here;
  }
  progress.clear();
  if (counts.tokens == 0) {
    throw PromptError(fmt::format("{}: expected at least one token, got none",
                                  flags.texts.size() == 1 ? flags.texts[0] : "the texts"));
  }
  output.write(to_json(counts));
  output.commit();
  const auto seen = std::ranges::count_if(counts.counts, [](int64_t count) { return count > 0; });
  say("{}: {} of {}, {} of {} ids seen\n", flags.output, plural(counts.tokens, "token"),
      plural(counts.texts, "text"), seen, counts.vocabulary.size);
}

}  // namespace

void add_frequencies_command(CLI::App& app, const Environment& environment) {
  auto flags = std::make_shared<FrequenciesFlags>();
  CLI::App* command =
      app.add_subcommand("frequencies", "Count a vocabulary's tokens in texts, for pc_sampler");
  command->footer(
      "Example: blockscope frequencies models/needle corpus.txt -o frequencies.json\n"
      "         blockscope capture models/needle --prompt \"...\" \\\n"
      "             --strategy pc_sampler,frequencies=frequencies.json -o pc.h5\n"
      "Texts are read in pieces of about 1 MB, cut after the end of a line.");
  command->add_option("model", flags->model, "Checkpoint folder, or a model id in the hub cache")
      ->required();
  command->add_option("--revision", flags->revision, "Use this revision of a model id")
      ->capture_default_str();
  command->add_option("texts", flags->texts, "Text files (UTF-8)")->required();
  command->add_option("-o,--output", flags->output, "Write the table as JSON to this file")
      ->required();
  command->add_flag("--force", flags->force, "Replace an existing output");
  command->add_flag("-q,--quiet", flags->quiet, "Print no progress");
  command->callback(
      [flags, command, environment] { run_frequencies(*command, *flags, environment); });
}

}  // namespace blockscope
