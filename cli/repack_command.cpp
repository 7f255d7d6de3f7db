// `blockscope repack`: compresses a trace, repairs what a kill left, merges the files of ranks.
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "command_line/options.h"
#include "command_line/pass_progress.h"
#include "command_line/printable.h"
#include "command_line/standard_streams.h"
#include "decode_record/base/error.h"
#include "decode_record/base/text.h"
#include "decode_record/repack/repack.h"

namespace blockscope {
namespace {

constexpr int kDefaultLevel = 4;  // higher levels cost much time and save little

struct RepackFlags {
  std::vector<std::string> inputs;
  std::string output;
  std::string compress = "none";
  int level = kDefaultLevel;
  bool merge = false;
  bool quiet = false;
  RepackOptions options;
};

/// Printed with --quiet too, because committed rows are lost.
void print_loss(const RepackLoss& loss) {
  note(
      "note: {}: kept {} of {} and {} of {}; the others are not whole in the file. {} lost "
      "rows or text and {} marked aborted. First lost: {}\n",
      loss.path, loss.rows, plural(loss.committed_rows, "committed row"), loss.sequences,
      plural(loss.committed_sequences, "sequence"), plural(loss.cut, "kept sequence"),
      loss.cut == 1 ? "is" : "are", loss.why);
}

void run_repack(RepackFlags& flags) {
  if (flags.inputs.size() > 1 && !flags.merge) {
    throw UsageError(
        fmt::format("repack: expected one trace, got {}. HINT: pass --merge to join them",
                    flags.inputs.size()));
  }
  flags.options.deflate = flags.compress == "deflate" ? flags.level : 0;
  const InterruptGuard guard;  // a signal must not leave a half-written output
  PassProgress progress(flags.quiet, 0);
  flags.options.progress = [&progress](std::int64_t done, std::int64_t total) {
    progress.show(static_cast<std::size_t>(done), static_cast<std::size_t>(total),
                  fmt::format("{} of {}", format_bytes(static_cast<double>(done)),
                              format_bytes(static_cast<double>(total))));
  };
  const RepackResult result = repack_traces(flags.inputs, flags.output, flags.options);
  progress.finish();
  for (const RepackLoss& loss : result.lost) print_loss(loss);
  if (flags.quiet) return;
  fmt::print("{}: {} of {}, {} (before: {})\n", printable(flags.output), plural(result.rows, "row"),
             plural(result.sequences, "sequence"), plural(result.bytes_after, "byte"),
             result.bytes_before);
  if (result.is_virtual) {
    fmt::print(
        "its arrays stay in the {} it was merged from. Keep those files where they are, or merge "
        "with --copy\n",
        plural(static_cast<std::int64_t>(flags.inputs.size()), "trace"));
  }
  if (result.aborted > 0) {
    fmt::print("{} no end and {} marked aborted\n",
               plural(result.aborted, "sequence has", "sequences have"),
               result.aborted == 1 ? "is" : "are");
  }
}

}  // namespace

void add_repack_command(CLI::App& app) {
  auto* command = app.add_subcommand("repack", "Compress, repair or merge traces into a new file");
  auto flags = std::make_shared<RepackFlags>();
  command->add_option("traces", flags->inputs, "Trace, or several with --merge")->required();
  command->add_option("-o,--output", flags->output, "Write the new trace here")->required();
  command
      ->add_option("--compress", flags->compress,
                   "Compress the datasets with deflate, or not at all")
      ->check(CLI::IsMember({"deflate", "none"}))
      ->capture_default_str();
  command->add_option("--level", flags->level, "Set the deflate level, with --compress deflate")
      ->check(whole_number(1, 9))
      ->capture_default_str();
  command->add_flag("--repair", flags->options.repair,
                    "Keep the whole rows of an unfinished (.partial) or cut trace");
  command->add_flag("--merge", flags->merge, "Join the traces of several ranks, in this order");
  command->add_flag("--copy", flags->options.copy,
                    "With --merge: copy the large arrays; the output then needs no other file");
  command->add_flag("--force", flags->options.force, "Replace an existing output");
  command->add_flag("-q,--quiet", flags->quiet, "Print nothing but errors");
  command->footer(
      "Example: blockscope repack run.r*.h5 --merge -o run.h5\n"
      "A merged trace refers to the arrays of its inputs; --copy, --compress and --repair copy "
      "them.");
  command->callback([flags, command] {
    refuse_idle(*command, "--level", flags->compress == "deflate", "--compress deflate");
    refuse_idle(*command, "--copy", flags->merge, "--merge");
    if (flags->compress == "deflate") refuse_idle_beside(*command, "--copy", "--compress");
    refuse_idle_beside(*command, "--copy", "--repair");
    run_repack(*flags);
  });
}

}  // namespace blockscope
