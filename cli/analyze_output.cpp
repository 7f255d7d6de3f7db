#include "cli/analyze_output.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "analysis/results/export_csv.h"
#include "analysis/results/export_hdf5.h"
#include "analysis/results/export_json.h"
#include "command_line/standard_streams.h"

namespace blockscope {

AnalyzeOutput::AnalyzeOutput(const AnalyzeFlags& flags) : quiet_(flags.quiet) {
  for (const std::string& trace : flags.traces) files_.reads_trace(trace);
  files_.reads_trace(flags.backbone);
  if (!flags.csv.empty()) csv_.emplace(files_, flags.csv, flags.force);
  if (!flags.json.empty()) json_.emplace(files_, flags.json, flags.force);
  if (!flags.hdf5.empty()) hdf5_ = files_.open(flags.hdf5, flags.force);
}

void AnalyzeOutput::write(const AnalysisDocument& document) {
  const auto csv = [&](std::ostream& out) { write_csv(document, out); };
  const auto json = [&](std::ostream& out) { write_json(document, out); };
  const bool stdout_csv = takes_stdout(csv_);
  const bool stdout_json = takes_stdout(json_);
  if (csv_ && !stdout_csv) csv_->write(csv);
  if (json_ && !stdout_json) json_->write(json);
  if (hdf5_) write_hdf5(document, *hdf5_);
  if (csv_) csv_->commit();
  if (json_) json_->commit();
  if (hdf5_) hdf5_->commit();
  for (const std::string& path : files_.written()) {
    if (prints_tables()) say("wrote {}\n", path);
  }
  if (stdout_csv) csv_->write(csv);
  if (stdout_json) json_->write(json);
}

std::size_t AnalyzeOutput::terminal_width() {
  winsize size{};
  constexpr std::size_t kDefault = 100;
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? std::max<std::size_t>(size.ws_col, 40) : kDefault;
}

}  // namespace blockscope
