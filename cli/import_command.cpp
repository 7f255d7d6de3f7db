// `blockscope import`: makes a trace of level `trajectory` from another tool's decoding trajectory
// or from the rounds of a draft that another engine ran. The whole file is read and checked before
// the trace is begun.
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "cli/commands.h"
#include "cmake/build_info/build_info.h"
#include "command_line/interrupt.h"
#include "command_line/options.h"
#include "command_line/printable.h"
#include "command_line/standard_streams.h"
#include "decode_record/base/error.h"
#include "decode_record/base/sha256.h"
#include "decode_record/base/text.h"
#include "decode_record/files/command_files.h"
#include "decode_record/interchange/import_frames.h"
#include "decode_record/interchange/import_klass.h"
#include "decode_record/interchange/import_rounds.h"
#include "decode_record/interchange/imported_trajectory.h"
#include "decode_record/json/json_document.h"
#include "probe/text/tokenizer.h"

namespace blockscope {
namespace {

struct ImportFlags {
  std::string input;
  std::string output;
  std::string tokenizer;
  std::string input_ids;
  ImportFacts facts;
  bool force = false;
};

std::vector<std::int64_t> parse_ids(const std::string& text) {
  std::vector<std::int64_t> ids;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string part = text.substr(at, end - at);
    if (part.empty() || part.size() > 9 ||
        part.find_first_not_of("0123456789") != std::string::npos) {
      throw UsageError(
          fmt::format("--input-ids: expected ids separated by commas, got '{}'", part));
    }
    ids.push_back(std::stoll(part));
    at = end + 1;
  }
  return ids;
}

std::optional<Tokenizer> load_tokenizer(const std::string& path) {
  if (path.empty()) return std::nullopt;
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return Tokenizer::from_directory(path);
  return Tokenizer::from_file(path);
}

/// A file of KLASS is an array of steps. A record of d2Cache is an object, alone or inside ours.
bool is_klass(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string::npos && text[first] == '[';
}

ImportedTrajectory parse(const CLI::App& command, const ImportFlags& flags,
                         const std::string& text) {
  if (is_klass(text)) return parse_klass(text, flags.input, flags.facts);
  for (const char* option : {"--prompt-length", "--input-ids"}) {
    refuse_idle(command, option, false, "a file of KLASS: others hold their prompts");
  }
  return parse_frames(text, flags.input, flags.facts);
}

/// What was imported, as /run/json says it.
nlohmann::ordered_json run_of(const ImportFlags& flags, const std::string& text,
                              const std::string& tool, const std::string& kept) {
  return {{"version", build_info().version},
          {"imported",
           {{"tool", tool},
            {"file", std::filesystem::path(flags.input).filename().string()},
            {"sha256", sha256_hex(text)},
            {"kept", nlohmann::ordered_json::parse(kept)}}}};
}

/// Writes the whole trace or nothing: unlike a run, an import can't be resumed.
template <typename WriteRows>
void write_trace(TraceMeta meta, const nlohmann::ordered_json& run, const ImportFlags& flags,
                 const WriteRows& write_rows) {
  meta.run_json = run.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  if (const auto tokenizer = load_tokenizer(flags.tokenizer)) {
    for (std::int64_t id = 0; id < meta.vocab_size; ++id) {
      meta.pieces.push_back(tokenizer->token_bytes(static_cast<TokenId>(id)));
    }
  }
  const InterruptGuard guard;
  std::string partial;
  try {
    TraceWriterOptions options;
    options.force = flags.force;
    TraceWriter writer(flags.output, meta, options);
    partial = writer.partial_path();
    write_rows(writer);
    InterruptGuard::check();
    writer.finish();
  } catch (...) {
    std::error_code ignored;
    if (!partial.empty()) std::filesystem::remove(partial, ignored);
    throw;
  }
}

void say_done(const ImportFlags& flags, const std::vector<std::string>& notes,
              std::size_t sequences, const std::string& tool, const std::string& count) {
  for (const std::string& what : notes) note("note: {}: {}\n", flags.input, what);
  say("{}: {} of {}, {}\n", flags.output, plural(static_cast<std::int64_t>(sequences), "sequence"),
      printable(tool), count);
}

void import_rounds(const CLI::App& command, const ImportFlags& flags, const std::string& text) {
  for (const char* option : {"--prompt-length", "--input-ids", "--block-causal"}) {
    refuse_idle(command, option, false, "a trajectory: the rounds of a draft give it themselves");
  }
  const ImportedRounds run = parse_rounds(text, flags.input, flags.facts);
  nlohmann::ordered_json json = run_of(flags, text, run.engine, run.kept);
  json["stop_ids"] = run.stop_ids;
  write_trace(rounds_meta(run), json, flags, [&](TraceWriter& writer) {
    write_rounds(run, writer, [] { InterruptGuard::check(); });
  });
  std::int64_t rounds = 0;
  for (const DraftedSequence& sequence : run.sequences) rounds += std::ssize(sequence.rounds);
  say_done(flags, run.notes, run.sequences.size(), run.engine, plural(rounds, "round"));
}

void import_trajectory(const CLI::App& command, const ImportFlags& flags, const std::string& text) {
  const ImportedTrajectory trajectory = parse(command, flags, text);
  write_trace(imported_meta(trajectory), run_of(flags, text, trajectory.tool, trajectory.kept),
              flags, [&](TraceWriter& writer) {
                write_imported(trajectory, writer, [] { InterruptGuard::check(); });
              });
  std::int64_t steps = 0;
  for (const ImportedSequence& sequence : trajectory.sequences) {
    steps += std::ssize(sequence.steps);
  }
  say_done(flags, trajectory.notes, trajectory.sequences.size(), trajectory.tool,
           plural(steps, "denoising step"));
}

void run_import(const CLI::App& command, ImportFlags flags) {
  check_trace_target(flags.output, flags.force);
  CommandFiles files;
  files.reads(flags.input);
  std::error_code error;
  if (std::filesystem::is_directory(flags.tokenizer, error)) {
    files.reads_checkpoint(flags.tokenizer);
  } else {
    files.reads(flags.tokenizer);
  }
  for (const std::string& name : {flags.output, flags.output + ".partial"}) {
    files.reserve(name, true);
  }
  if (!flags.input_ids.empty()) {
    flags.facts.prompt = parse_ids(flags.input_ids);
    flags.facts.prompt_length = static_cast<std::int64_t>(flags.facts.prompt.size());
    for (const std::int64_t id : flags.facts.prompt) {
      if (!flags.facts.vocab_size || id < *flags.facts.vocab_size) continue;
      throw UsageError(fmt::format("--input-ids: expected ids below --vocab-size {}, got {}",
                                   *flags.facts.vocab_size, id));
    }
  }
  const std::string text = read_document(flags.input);
  is_rounds(text) ? import_rounds(command, flags, text) : import_trajectory(command, flags, text);
}

}  // namespace

void add_import_command(CLI::App& app) {
  auto* command =
      app.add_subcommand("import", "Make a trace from what another tool or engine wrote");
  auto flags = std::make_shared<ImportFlags>();
  command
      ->add_option("file", flags->input,
                   "KLASS's --save_steps, d2Cache's record or a draft's rounds, as JSON "
                   "(docs/interchange.md)")
      ->required();
  command->add_option("-o,--output", flags->output, "Write this trace")->required();
  const auto number = [&](const char* name, std::optional<std::int64_t>& value, const char* text,
                          std::int64_t least) {
    command->add_option(name, value, text)->check(whole_number(least, kLargestLength));
  };
  number("--vocab-size", flags->facts.vocab_size,
         "Set the vocabulary size if the file does not give it", 1);
  number("--mask-token-id", flags->facts.mask_token_id,
         "Set the mask token id if the file does not give it", 0);
  number("--block-length", flags->facts.block_length,
         "Set the number of positions of a block (default: from the file)", 1);
  number("--prompt-length", flags->facts.prompt_length,
         "KLASS: check the file's first position against this prompt length", 0);
  command->add_option("--input-ids", flags->input_ids,
                      "KLASS: store these prompt token ids, separated by commas (default: masks)");
  command->add_flag("--block-causal", flags->facts.block_causal,
                    "Count blocks from position 0, as SDAR does, not from the prompt's end");
  command->add_option("--tokenizer", flags->tokenizer,
                      "Take the texts of tokens from this tokenizer.json or checkpoint folder");
  command->add_flag("--force", flags->force, "Replace an existing trace");
  command->footer(
      "Default block length: the file's. For KLASS: the number of masks in the first step.\n"
      "For a d2Cache file without one: a single block. In rounds, a block is the certain token\n"
      "and the drafted tokens.\n"
      "Example: blockscope import all_steps_q0_s0.json --vocab-size 126464 \\\n"
      "           --mask-token-id 126336 -o run.h5\n"
      "Example: blockscope import rounds.jsonl -o engine.h5 && blockscope diff ours.h5 engine.h5");
  command->callback([flags, command] {
    refuse_idle_beside(*command, "--prompt-length", "--input-ids");
    run_import(*command, *flags);
  });
}

}  // namespace blockscope
