// Where the results of `blockscope analyze` go: tables on the terminal, and files or the standard
// output. Internal to the command's files.
#pragma once

#include <optional>

#include "analysis/results/analysis_document.h"
#include "cli/analyze_flags.h"
#include "command_line/text_output.h"

namespace blockscope {

class AnalyzeOutput {
 public:
  /// Opens the output files now: a path that can't be written must fail before the work. Throws
  /// what CommandFiles throws, and UsageError when two outputs want the standard output.
  explicit AnalyzeOutput(const AnalyzeFlags& flags);

  /// Whether anything goes to a file or the standard output.
  bool exports() const { return csv_ || json_ || hdf5_; }
  /// Tables are printed unless the standard output is taken or --quiet was given.
  bool prints_tables() const { return !takes_stdout(csv_) && !takes_stdout(json_) && !quiet_; }
  /// Writes everything; all files appear or, on an error, none.
  void write(const AnalysisDocument& document);
  /// Columns of the terminal, or 100 without a terminal.
  static std::size_t terminal_width();

 private:
  static bool takes_stdout(const std::optional<TextOutput>& output) {
    return output && output->is_standard_output();
  }

  CommandFiles files_;
  bool quiet_;
  std::optional<TextOutput> csv_, json_;
  std::optional<OutputFile> hdf5_;
};

}  // namespace blockscope
