#include "cli/analyze_idle.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "command_line/options.h"
#include "decode_record/base/error.h"
#include "decode_record/files/output_file.h"

namespace blockscope {
namespace {

/// Options of MetricOptions.
constexpr std::array kMetricOptions{"--from-summary", "--set-sizes", "--taus", "--count",
                                    "--sink-factor"};

bool is_file(const std::string& output) { return !output.empty() && output != kStandardOutput; }

void refuse_beside_matrix(const CLI::App& command, const AnalyzeFlags& flags) {
  for (const char* option : {"--field", "--row-a", "--row-b"}) {
    refuse_idle(command, option, !flags.matrix.empty(), "--matrix");
  }
  for (const char* option : kMetricOptions) refuse_idle_beside(command, option, "--matrix");
  for (const char* option : {"--threads", "--memory"}) {
    refuse_idle_beside(command, option, "--matrix");
  }
  refuse_idle(command, "--field", flags.matrix != "attention", "--matrix token or step");
  refuse_idle(command, "--step", flags.matrix != "step", "--matrix token or attention");
  for (const char* option : {"--row-a", "--row-b"}) {
    refuse_idle(command, option, flags.matrix.empty() || flags.matrix == "token", "--matrix token");
  }
  refuse_idle(command, "--row-b", flags.row_a >= 0, "--row-a");
  for (const char* option : {"--sequence", "--block", "--step"}) {
    refuse_idle_beside(command, option, "--row-a");
  }
}

}  // namespace

void refuse_idle_combinations(const CLI::App& command, const AnalyzeFlags& flags) {
  if (flags.list) {
    for (const CLI::Option* option : command.get_options()) {
      const std::string name = option->get_name();
      if (name != "--list" && name != "--plugin") refuse_idle_beside(command, name, "--list");
    }
  }
  refuse_beside_matrix(command, flags);
  for (const char* option : {"--matrix", "--backbone"}) {
    refuse_idle_beside(command, "--plugin", option);
  }
  refuse_idle_beside(command, "--set-sizes", "--backbone");
  refuse_idle_beside(command, "--taus", "--backbone");
  refuse_idle_beside(command, "--count", "--backbone");
  refuse_idle_beside(command, "--sink-factor", "--backbone");
  refuse_idle_beside(command, "--set-sizes", "--from-summary");
  refuse_idle(command, "--force", is_file(flags.csv) || is_file(flags.json) || is_file(flags.hdf5),
              "a file as --csv, --json or --hdf5");
  const bool tables = !flags.quiet && flags.csv != kStandardOutput && flags.json != kStandardOutput;
  refuse_idle(command, "--by", tables, "tables, which --quiet, --csv - and --json - leave out");
  if (flags.by.size() == 2 && flags.by[0] == flags.by[1]) {
    throw UsageError(
        fmt::format("--by {0},{0}: names one axis twice. HINT: --by {0}, or another "
                    "axis for the columns",
                    flags.by[0]));
  }
}

void refuse_idle_metric_options(const CLI::App& command,
                                const std::vector<const MetricInfo*>& chosen) {
  for (const char* option : kMetricOptions) {
    const auto reads = [&](const MetricInfo& metric) {
      return std::ranges::count(metric.reads, option) > 0;
    };
    std::vector<std::string> readers;
    for (const MetricInfo& metric : all_metrics()) {
      if (reads(metric)) readers.push_back(metric.name);
    }
    const bool read =
        std::ranges::any_of(chosen, [&](const auto* metric) { return reads(*metric); });
    refuse_idle(command, option, read,
                fmt::format("{} {}", readers.size() > 1 ? "one of the metrics" : "the metric",
                            fmt::join(readers, ", ")));
  }
}

void refuse_idle_axes(const CLI::App& command, const std::vector<MetricResult>& results) {
  std::set<std::string> axes;
  for (const MetricResult& result : results) {
    for (const ResultArray& array : result.arrays) {
      for (const ResultAxis& axis : array.axes) axes.insert(axis.name);
    }
  }
  refuse_idle(command, "--layer", axes.contains("layer"), "a metric that has layers");
  refuse_idle(command, "--head", axes.contains("head") || axes.contains("kv_head"),
              "a metric that has heads");
  refuse_idle(command, "--step", axes.contains("step"), "a metric that has steps");
}

}  // namespace blockscope
