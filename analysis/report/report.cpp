#include "analysis/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "analysis/pass/damage.h"
#include "analysis/pass/interesting_block.h"
#include "analysis/report/explore.h"
#include "analysis/report/facts.h"
#include "analysis/report/report_metrics.h"
#include "analysis/report/sections.h"
#include "analysis/report/trajectory.h"
#include "decode_record/base/error.h"
#include "decode_record/base/text.h"

namespace blockscope {
namespace {

std::string list_text(const std::vector<std::int64_t>& values) {
  constexpr std::size_t kNamed = 40;
  std::string text;
  for (std::size_t i = 0; i < std::min(values.size(), kNamed); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", values[i]);
  }
  return values.size() > kNamed ? text + ", ..." : text;
}

std::int64_t slot_of(const std::vector<std::int64_t>& values, std::int64_t wanted,
                     const char* flag) {
  const auto at = std::ranges::find(values, wanted);
  if (at == values.end()) {
    throw UsageError(
        fmt::format("{} {}: expected one that the trace has: {}", flag, wanted, list_text(values)));
  }
  return at - values.begin();
}

/// Distinct, ascending.
std::vector<std::int64_t> sequences_of(const std::vector<BlockSteps>& blocks) {
  std::vector<std::int64_t> sequences;
  for (const BlockSteps& block : blocks) sequences.push_back(block.sequence);
  std::ranges::sort(sequences);
  sequences.erase(std::unique(sequences.begin(), sequences.end()), sequences.end());
  return sequences;
}

PictureChoice choose(const TraceReader& trace, const std::vector<BlockSteps>& all,
                     const ReportOptions& options) {
  const TraceMeta& meta = trace.info().meta;
  PictureChoice choice;
  choice.heatmap.layer_slot = options.layer ? slot_of(meta.layers, *options.layer, "--layer")
                                            : static_cast<std::int64_t>(meta.layers.size() / 2);
  if (options.head) choice.heatmap.head_slot = slot_of(meta.heads, *options.head, "--head");
  std::vector<BlockSteps> candidates = all;
  if (options.sequence) {
    slot_of(sequences_of(all), *options.sequence, "--sequence");
    std::erase_if(candidates, [&](const auto& b) { return b.sequence != *options.sequence; });
  }
  if (options.block) {
    std::vector<std::int64_t> numbers;
    for (const BlockSteps& block : candidates) numbers.push_back(block.block);
    slot_of(numbers, *options.block, "--block");
    std::erase_if(candidates, [&](const auto& b) { return b.block != *options.block; });
  }
  if (candidates.empty()) return choice;
  const BlockSteps chosen = candidates[most_to_see(trace, candidates).block];
  for (const BlockSteps& block : all) {
    if (block.sequence != chosen.sequence) continue;
    if (block.block == chosen.block) choice.block = choice.blocks.size();
    choice.blocks.push_back(block);
  }
  return choice;
}

ReportPage build_page(const TraceGroup& traces, const ReportOptions& options) {
  std::vector<std::vector<BlockSteps>> blocks;
  for (std::size_t i = 0; i < traces.size(); ++i) blocks.push_back(list_blocks(traces.trace(i)));
  const TraceCounts counts = count_trace(blocks);
  if (counts.steps == 0) {
    const TraceInfo& first = traces.trace(0).info();
    throw TraceError(fmt::format("{}: nothing to report: {} committed, no denoising step",
                                 first.path, plural(first.num_rows, "row")));
  }
  const PictureChoice choice = choose(traces.trace(0), blocks[0], options);
  PassOptions pass;
  pass.threads = options.threads;
  pass.progress = options.progress;
  const ReportMetrics metrics = measure(traces, options.backbone, pass);
  const ReuseResults reuse = predict_reuse(traces, pass);
  ReportPage page;
  page.title =
      options.title.empty() ? "What " + model_name(traces) + " did, step by step" : options.title;
  page.subtitle = fmt::format("Blockscope report on {}, {} and {}",
                              counted(counts.sequences, "sequence", "sequences"),
                              counted(counts.blocks, "block", "blocks"),
                              counted(counts.steps, "denoising step", "denoising steps"));
  page.findings = find_findings(metrics);
  if (!reuse.finding.empty()) page.findings.push_back(reuse.finding);
  page.facts = run_facts(traces, counts, options.backbone);
  page.sections.push_back(trajectory_section(traces, choice));
  if (metrics.find("draft") != nullptr || metrics.missing.count("draft") > 0) {
    page.sections.push_back(draft_section(metrics));
  }
  page.sections.push_back(stability_section(traces, choice, metrics));
  // A draft's block has one step, so there is no earlier step with an A_out to reuse.
  if (!traces.trace(0).info().meta.has_draft) {
    page.sections.push_back(reuse_section(metrics, reuse));
  }
  page.sections.push_back(attention_section(traces, choice, metrics));
  page.sections.push_back(sets_section(metrics));
  if (metrics.find("selection") != nullptr || metrics.missing.count("selection") > 0) {
    page.sections.push_back(selection_section(metrics));
  }
  if (metrics.find("cache") != nullptr || metrics.missing.count("cache") > 0) {
    page.sections.push_back(cache_section(traces, choice, metrics));
  }
  if (metrics.find("router") != nullptr || metrics.missing.count("router") > 0) {
    page.sections.push_back(router_section(metrics));
  }
  if (!traces.trace(0).info().meta.continuous()) {
    page.sections.push_back(decoding_section(metrics));
  }
  if (!options.own.empty()) page.sections.push_back(own_section(options.own));
  page.sections.push_back(methods_section(metrics));
  // A chosen sequence may be the only one whose text is meant to be seen.
  const nlohmann::json explore =
      explore_data(traces, options.sequence ? choice.blocks : blocks[0], choice, metrics);
  if (!explore.is_null()) page.explore = script_json(explore);
  page.footer = "Made by blockscope report. This page loads nothing from other files or sites.";
  return page;
}

}  // namespace

ReportPage make_report(const TraceGroup& traces, const ReportOptions& options) {
  return naming_damage(traces.trace(0).info().path, [&] { return build_page(traces, options); });
}

}  // namespace blockscope
