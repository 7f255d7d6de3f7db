#include "analysis/report/sections.h"

#include <fmt/format.h>

#include "analysis/report/html.h"
#include "analysis/report/trajectory.h"
#include "decode_record/base/error.h"

namespace blockscope {
namespace {

/// Collects a section's parts from results that may be missing.
class SectionBuilder {
 public:
  SectionBuilder(const ReportMetrics& metrics, std::string id, std::string title, std::string lead)
      : metrics_(metrics), section_{std::move(id), std::move(title), std::move(lead), {}} {}

  void add(std::optional<ReportFigure> figure) {
    if (figure) section_.parts.emplace_back(std::move(*figure));
  }
  void add(std::optional<ReportTable> table) {
    if (table) section_.parts.emplace_back(std::move(*table));
  }
  void add(std::vector<ReportFigure> figures) {
    for (ReportFigure& figure : figures) section_.parts.emplace_back(std::move(figure));
  }
  void note(const std::string& text) {
    section_.parts.emplace_back(ReportHtml{html_paragraph(text, "note")});
  }
  /// `draw` with the metric's result, or the reason why there is none.
  template <typename Draw>
  void add_from(const std::string& metric, Draw draw) {
    if (const MetricResult* result = metrics_.find(metric)) {
      const std::size_t before = section_.parts.size();
      add(draw(*result));
      if (section_.parts.size() == before) {
        note(fmt::format("{}: the trace has no terms for it.", result->title));
      }
    } else if (const auto reason = metrics_.missing.find(metric);
               reason != metrics_.missing.end()) {
      note(reason->second);
    }
  }
  ReportSection take() { return std::move(section_); }

 private:
  const ReportMetrics& metrics_;
  ReportSection section_;
};

/// Heatmaps of one block, or what level they need.
void add_heatmaps(SectionBuilder& section, const TraceGroup& traces, const PictureChoice& choice) {
  const RecordLevel level = lowest_level(traces);
  if (level < RecordLevel::outputs) {
    section.note(
        fmt::format("Token \u00d7 token and step \u00d7 step heatmaps are not here: this "
                    "trace was recorded with --record {}; they need --record outputs.",
                    to_string(level)));
    return;
  }
  if (choice.blocks.empty()) return;
  const BlockSteps& block = choice.blocks[choice.block];
  try {
    auto tokens = token_heatmaps(traces.trace(0), block, choice.heatmap);
    if (!tokens) section.note("Heatmaps: the block has no two adjacent recorded steps.");
    section.add(std::move(tokens));
    section.add(step_heatmaps(traces.trace(0), block, choice.heatmap));
  } catch (const TraceError& error) {
    section.note(error.what());  // captured under a policy without exact values
  }
}

}  // namespace

ReportSection trajectory_section(const TraceGroup& traces, const PictureChoice& choice) {
  return {"trajectory",
          "How a text appears",
          "One row per position, one column per denoising step. A dot is a mask; a token stands "
          "where it was decided, coloured by its confidence, and stays.",
          {ReportHtml{trajectory_html(traces.trace(0), choice.blocks, choice.block)}}};
}

ReportSection stability_section(const TraceGroup& traces, const PictureChoice& choice,
                                const ReportMetrics& metrics) {
  SectionBuilder section(metrics, "stability", "What stays and what moves",
                         "From one denoising step to the next: A_out, attention to the prefix, "
                         "beside A_in, attention inside the block.");
  add_heatmaps(section, traces, choice);
  section.add_from("similarity", head_similarity);
  section.add_from("similarity", similarity_over_steps);
  section.add_from("external_mass", external_mass_map);
  return section.take();
}

ReportSection reuse_section(const ReportMetrics& metrics, const ReuseResults& reuse) {
  SectionBuilder section(
      metrics, "reuse", "What reuse would save",
      "FlashBlock takes A_out of an earlier step where a head is steady enough "
      "(\u03b3) and few tokens changed (\u03c4). Predicted from the trace alone; "
      "blockscope verify measures it.");
  if (reuse.missing.empty()) {
    section.add(gamma_curves(reuse.curves));
  } else {
    section.note(reuse.missing);
  }
  section.add_from("reuse_error", reuse_error_by_layer);
  return section.take();
}

ReportSection sets_section(const ReportMetrics& metrics) {
  SectionBuilder section(
      metrics, "sets", "Which keys matter",
      "The k prefix positions that a block attends to most: do later steps still "
      "want those of step 1, and can the tokens of a block share them?");
  section.add_from("recall", recall_over_steps);
  section.add_from("union_size", union_sizes);
  section.add_from("est_acc", estimation_accuracy);
  if (metrics.find("query_comparison") != nullptr) {
    section.add_from("query_comparison", query_stages);
  } else {
    section.add_from("query_statistics", query_stages);
  }
  return section.take();
}

ReportSection selection_section(const ReportMetrics& metrics) {
  SectionBuilder section(
      metrics, "selection", "What the sparse policy read",
      "The run read some keys of the prefix only. How many of the ones that mattered were among "
      "them, and what the others would have added.");
  section.add_from("selection", selection_over_steps);
  section.add_from("selection", selection_by_layer);
  return section.take();
}

ReportSection cache_section(const TraceGroup& traces, const PictureChoice& choice,
                            const ReportMetrics& metrics) {
  SectionBuilder section(metrics, "cache", "What the cache kept",
                         "A pass need not compute every position of the canvas again: which ones "
                         "it did, and how far what it kept is from the truth.");
  section.add_from("cache", cache_means);
  section.add_from("cache", cache_rows_over_steps);
  section.add_from("cache", cache_rows_map);
  const TraceReader& first = traces.trace(0);
  if (first.has(Field::shadow_key_cosine)) {
    section.add_from("cache", cache_staleness);
  } else {
    section.note("Staleness is not here: it needs capture --shadow and --record summary.");
  }
  if (!choice.blocks.empty() && first.has(Field::block_key)) {
    section.add(kv_step_heatmaps(first, choice.blocks[choice.block], choice.heatmap));
  } else {
    section.note("Step \u00d7 step maps of keys and values need --record full.");
  }
  return section.take();
}

ReportSection router_section(const ReportMetrics& metrics) {
  SectionBuilder section(metrics, "router", "Which experts are chosen",
                         "A router sends each position to a few of a layer's experts. Whether all "
                         "are used, and whether a position keeps its experts while its block is "
                         "denoised.");
  section.add_from("router", router_usage_map);
  section.add_from("router", router_by_layer);
  section.add_from("router", router_agreement);
  return section.take();
}

ReportSection draft_section(const ReportMetrics& metrics) {
  SectionBuilder section(metrics, "draft", "What the target accepted",
                         "The model of this trace drafts blocks for another one, which keeps the "
                         "longest front of each that it would have chosen itself. How much that "
                         "is, when it is more, and which block length would pay best.");
  section.add_from("draft", draft_means);
  section.add_from("draft", draft_lengths);
  section.add_from("draft", draft_positions);
  section.add_from("draft", draft_reasons);
  const MetricResult* result = metrics.find("draft");
  if (result == nullptr || result->find("speedup") != nullptr) {
    section.add_from("draft", draft_speedup);
  } else {
    section.note(
        "No speed-up is predicted: the trace has no /draft/cost, which a run without "
        "--no-draft-cost measures.");
  }
  return section.take();
}

ReportSection decoding_section(const ReportMetrics& metrics) {
  SectionBuilder section(metrics, "decoding", "How it decoded",
                         "Tokens decided per step, how sure the model was, and when each position "
                         "of a block was settled.");
  section.add_from("decoding", decoding_means);
  section.add_from("decoding", decoding_over_steps);
  section.add_from("decoding", settled_map);
  return section.take();
}

ReportSection methods_section(const ReportMetrics& metrics) {
  ReportSection section{"methods",
                        "How the numbers were made",
                        "Denoising steps only: prefill and commit passes never enter a mean. Means "
                        "are weighted by their number of terms.",
                        {}};
  NumberTable table{{"metric", "definition", "source", "from", "left out"}, {}};
  for (const auto& [name, result] : metrics.found) {
    std::string left_out;
    for (const auto& [reason, count] : result.left_out) {
      left_out += fmt::format("{}{} ({})", left_out.empty() ? "" : "; ", reason, count_text(count));
    }
    table.rows.push_back({result.title, result.formula, result.source, result.computed_from,
                          left_out.empty() ? "nothing" : left_out});
  }
  if (!table.empty()) {
    section.parts.emplace_back(
        ReportHtml{"<div class=\"scroll\">" + html_table(table, "numbers prose") + "</div>"});
  }
  return section;
}

}  // namespace blockscope
