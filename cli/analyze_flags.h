// The flags of `blockscope analyze` and what they select. Internal to the command's files.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "analysis/metrics/metrics.h"
#include "analysis/pass/step_pass.h"

namespace blockscope {

struct AnalyzeFlags {
  std::vector<std::string> traces;
  std::string backbone;
  // What to compute.
  std::vector<std::string> metrics;
  bool list = false;
  bool from_summary = false;
  std::string set_sizes;
  std::vector<std::string> taus;
  ReuseCount count = MetricOptions{}.count;
  double sink_factor = MetricOptions{}.sink_factor;
  // Which part of the traces.
  std::string layers, heads, steps, blocks, sequences;
  // One matrix instead of metrics.
  std::string matrix;
  std::string field = "external";
  std::int64_t row_a = -1, row_b = -1;
  // Where the results go.
  std::vector<std::string> by;
  std::string csv, json, hdf5;
  bool force = false;
  bool quiet = false;
  // Resources.
  std::size_t threads = 0;
  std::size_t memory_mib = 256;
};

void add_analyze_flags(CLI::App& command, AnalyzeFlags& flags);

/// The flags that narrow the analysis, as given: {"--layer", "0-3"}.
std::vector<std::pair<std::string, std::string>> given_selection(const AnalyzeFlags& flags);

using Indices = std::optional<std::vector<std::int64_t>>;

/// Index lists checked against what the traces recorded; unset: all.
struct AnalyzeSelection {
  Indices layers, heads, kv_heads, steps;
  RowSelection rows;
};
/// Throws UsageError for layers and heads that were not recorded. The message names the flag and
/// what was recorded.
AnalyzeSelection parse_selection(const AnalyzeFlags& flags, const TraceShape& shape);

/// Throws UsageError for a tau that is not a number above 0 or `inf`, and for sizes below 1.
MetricOptions metric_options(const AnalyzeFlags& flags);

/// Adds `--count`: what tau counts.
void add_count_option(CLI::App& command, ReuseCount& count);

}  // namespace blockscope
