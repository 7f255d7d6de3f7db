#include "cli/analyze_output.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <sstream>

#include "analysis/results/export_csv.h"
#include "analysis/results/export_hdf5.h"
#include "analysis/results/export_json.h"
#include "command_line/standard_streams.h"
#include "decode_record/error.h"

namespace blockscope {
namespace {

using TextWriter = void (*)(const AnalysisDocument&, std::ostream&);

void write_text(const OutputFile& output, const AnalysisDocument& document, TextWriter writer) {
  std::ostringstream text;
  writer(document, text);
  output.write(text.str());
}

}  // namespace

AnalyzeOutput::AnalyzeOutput(const AnalyzeFlags& flags) : force_(flags.force), quiet_(flags.quiet) {
  for (const std::string& trace : flags.traces) files_.reads_trace(trace);
  files_.reads_trace(flags.backbone);
  csv_ = open(flags.csv, Text::csv);
  json_ = open(flags.json, Text::json);
  if (flags.hdf5 == "-") {
    throw UsageError("--hdf5: the standard output can't hold HDF5. HINT: name a file");
  }
  hdf5_ = open(flags.hdf5, Text::none);
}

std::optional<OutputFile> AnalyzeOutput::open(const std::string& path, Text text) {
  if (path.empty()) return std::nullopt;
  if (path == "-") {
    if (to_stdout_ != Text::none) {
      throw UsageError("--csv -, --json -: only one of them can have the standard output");
    }
    to_stdout_ = text;
    return std::nullopt;
  }
  return files_.open(path, force_);
}

void AnalyzeOutput::write(const AnalysisDocument& document) {
  if (csv_) write_text(*csv_, document, write_csv);
  if (json_) write_text(*json_, document, write_json);
  if (hdf5_) write_hdf5(document, hdf5_->temporary());
  for (std::optional<OutputFile>* output : {&csv_, &json_, &hdf5_}) {
    if (!*output) continue;
    (*output)->commit();
    if (prints_tables()) say("wrote {}\n", (*output)->path());
  }
  if (to_stdout_ == Text::none) return;
  (to_stdout_ == Text::csv ? write_csv : write_json)(document, std::cout);
  std::cout.flush();
}

std::size_t AnalyzeOutput::terminal_width() {
  winsize size{};
  constexpr std::size_t kDefault = 100;
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? std::max<std::size_t>(size.ws_col, 40) : kDefault;
}

}  // namespace blockscope
