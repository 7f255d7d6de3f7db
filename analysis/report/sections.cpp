#include "analysis/report/sections.h"

#include <fmt/format.h>

#include "analysis/metrics/draft_symptoms.h"
#include "analysis/report/attention_html.h"
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
  void add_html(std::string html) { section_.parts.emplace_back(ReportHtml{std::move(html)}); }
  void note(const std::string& text) {
    section_.parts.emplace_back(ReportHtml{html_paragraph(text, "note")});
  }
  /// Adds draw() of the metric's result, or a note why there is no result.
  template <typename Draw>
  void add_from(const std::string& metric, Draw draw) {
    if (const MetricResult* result = metrics_.find(metric)) {
      const std::size_t before = section_.parts.size();
      add(draw(*result));
      if (section_.parts.size() == before) {
        note_empty(result->title);
      }
    } else if (const auto reason = metrics_.missing.find(metric);
               reason != metrics_.missing.end()) {
      note(reason->second);
    }
  }
  ReportSection take() { return std::move(section_); }

 private:
  /// Once for several figures of a metric.
  void note_empty(const std::string& title) {
    if (title == empty_) return;
    empty_ = title;
    note(fmt::format("{}: {}", title,
                     metrics_.compares_steps
                         ? "the trace has no values for this."
                         : "no block has two recorded steps, so there is nothing to compare."));
  }

  const ReportMetrics& metrics_;
  ReportSection section_;
  std::string empty_;  // the title that the last note was about
};

/// Adds heatmaps of one block, or a note about the level that they need.
void add_heatmaps(SectionBuilder& section, const TraceGroup& traces, const PictureChoice& choice) {
  const RecordLevel level = lowest_level(traces);
  if (level < RecordLevel::outputs) {
    section.note(
        fmt::format("Token \u00d7 token and step \u00d7 step heatmaps are missing. They need "
                    "--record outputs, and this trace was recorded with --record {}.",
                    to_string(level)));
    return;
  }
  if (choice.blocks.empty()) return;
  const BlockSteps& block = choice.blocks[choice.block];
  try {
    auto tokens = token_heatmaps(traces.trace(0), block, choice.heatmap);
    if (!tokens) section.note("Heatmaps are missing: the block has no adjacent recorded steps.");
    section.add(std::move(tokens));
    section.add(step_heatmaps(traces.trace(0), block, choice.heatmap));
  } catch (const TraceError& error) {
    section.note(error.what());  // captured with a policy that leaves no exact values
  }
}

}  // namespace

ReportSection trajectory_section(const TraceGroup& traces, const PictureChoice& choice) {
  if (traces.trace(0).info().meta.continuous()) {
    return {"trajectory",
            "Blocks and steps",
            "The model is continuous, so the trace has no tokens. Each row is a block, each column "
            "a step, and each cell the timestep of its pass.",
            {ReportHtml{steps_html(traces.trace(0), choice.blocks)}}};
  }
  return {"trajectory",
          "How a text appears",
          "Each row is a position, each column a denoising step. A token appears at the step that "
          "decided it, coloured by its confidence. A dot stands for an undecided position.",
          {ReportHtml{trajectory_html(traces.trace(0), choice.blocks, choice.block)}}};
}

ReportSection stability_section(const TraceGroup& traces, const PictureChoice& choice,
                                const ReportMetrics& metrics) {
  SectionBuilder section(metrics, "stability", "What stays and what moves",
                         "How the attention output changes from one denoising step to the next: "
                         "A_out, attention to the prefix, compared with A_in, attention "
                         "inside the block.");
  add_heatmaps(section, traces, choice);
  section.add_from("similarity", head_similarity);
  section.add_from("similarity", similarity_over_steps);
  section.add_from("external_mass", external_mass_map);
  return section.take();
}

ReportSection reuse_section(const ReportMetrics& metrics, const ReuseResults& reuse) {
  SectionBuilder section(
      metrics, "reuse", "What reuse would save",
      "FlashBlock reuses A_out of an earlier step in heads with a similarity above \u03b3, at "
      "steps before which fewer than \u03c4 positions changed since the last read. These numbers "
      "are predicted from the trace "
      "alone. blockscope verify measures them.");
  if (reuse.missing.empty()) {
    section.add(gamma_curves(reuse.curves));
  } else {
    section.note(reuse.missing);
  }
  section.add_from("reuse_error", reuse_error_by_layer);
  section.add_from("kept_pair", [&](const MetricResult& result) {
    return kept_by_age(result, metrics.find("similarity"));
  });
  return section.take();
}

namespace {

/// The map of one head over real text, if the trace has weights.
void add_looked_at(SectionBuilder& section, const TraceGroup& traces, const PictureChoice& choice,
                   const MetricResult* heads) {
  const TraceReader& trace = traces.trace(0);
  if (heads == nullptr || choice.blocks.empty()) return;
  if (!trace.has(Field::prefix_key) && !trace.has(Field::map_weight)) {
    return section.note(
        "The text that a head looks at is missing. It needs --record full, or --record-maps.");
  }
  std::optional<LookedAt> head = most_telling_head(trace, *heads);
  if (choice.heatmap.head_slot) {
    head = LookedAt{static_cast<std::size_t>(choice.heatmap.layer_slot),
                    static_cast<std::size_t>(*choice.heatmap.head_slot), "The chosen head."};
  }
  if (!head || !has_weights(trace, head->layer, head->head)) {
    return section.note(
        "The text that a head looks at is missing: the trace has no weights of the chosen head. It "
        "needs --record full, or --record-maps with this layer and head.");
  }
  const std::string html = attention_html(trace, choice.blocks[choice.block], *head);
  if (!html.empty()) section.add_html(html);
}

}  // namespace

ReportSection attention_section(const TraceGroup& traces, const PictureChoice& choice,
                                const ReportMetrics& metrics) {
  SectionBuilder section(
      metrics, "attention", "Where attention goes",
      "How widely a head spreads its weights, how far away the keys stand, and "
      "what stands there. Attention sinks are prefix keys that receive much more "
      "attention than the others, often without any meaning of their own. In "
      "diffusion models they can move from step to step.");
  section.add_from("entropy", entropy_map);
  section.add_from("heads", head_classes);
  add_looked_at(section, traces, choice, metrics.find("heads"));
  section.add_from("regions", regions_over_steps);
  section.add_from("distance", attention_by_distance);
  section.add_from("distance", attention_in_block);
  section.add_from("sinks", sinks_over_steps);
  section.add_from("sinks", sinks_by_layer);
  return section.take();
}

ReportSection sets_section(const ReportMetrics& metrics) {
  SectionBuilder section(
      metrics, "sets", "Which keys matter",
      "The k prefix positions that a block attends to most. Do later steps want the same positions "
      "as step 1? Can the tokens of a block share one set?");
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
      "This run read only some keys of the prefix. The figures show how many of the most important "
      "keys it read, and the error that the other keys cause.");
  section.add_from("selection", selection_over_steps);
  section.add_from("selection", selection_by_layer);
  return section.take();
}

ReportSection cache_section(const TraceGroup& traces, const PictureChoice& choice,
                            const ReportMetrics& metrics) {
  SectionBuilder section(metrics, "cache", "What the cache kept",
                         "A pass does not compute every position of the canvas again. The "
                         "figures show which positions it computed, and how far the kept "
                         "values are from those of a pass without a cache.");
  section.add_from("cache", cache_means);
  section.add_from("cache", cache_rows_over_steps);
  section.add_from("cache", cache_rows_map);
  const TraceReader& first = traces.trace(0);
  if (first.has(Field::shadow_key_cosine)) {
    section.add_from("cache", cache_staleness);
  } else {
    section.note("Staleness is missing: it needs capture --shadow and --record summary.");
  }
  if (!choice.blocks.empty() && first.has(Field::block_key)) {
    section.add(kv_step_heatmaps(first, choice.blocks[choice.block], choice.heatmap));
  } else {
    section.note("Step \u00d7 step maps of keys and values are missing: they need --record full.");
  }
  return section.take();
}

ReportSection router_section(const ReportMetrics& metrics) {
  SectionBuilder section(metrics, "router", "Which experts are chosen",
                         "A router sends each position to a few of a layer's experts. The figures "
                         "show whether all experts are used, and whether a position keeps its "
                         "experts while its block is denoised.");
  section.add_from("router", router_usage_map);
  section.add_from("router", router_by_layer);
  section.add_from("router", router_agreement);
  return section.take();
}

namespace {

/// The table of symptoms, filled from the trace.
std::optional<ReportTable> draft_symptom_table(const MetricResult& result) {
  ReportTable part;
  part.name = "draft_symptoms";
  part.title = "Causes of low acceptance";
  part.caption =
      "Each row is a known cause of low acceptance, and a number of this trace that shows it. A "
      "symptom that was seen suggests its cause and doesn\u2019t prove it: the last columns say "
      "what "
      "looks the same, and where to look. n counts the evidence.";
  part.prose = true;
  part.table.header = {"cause", "verdict",  "number",         "seen if",
                       "n",     "measured", "looks the same", "look at"};
  for (const SymptomVerdict& verdict : symptom_verdicts(result)) {
    const DraftSymptom& symptom = *verdict.symptom;
    part.table.rows.push_back({fmt::format("{} ({})", symptom.title, symptom.name), verdict.text(),
                               report_number(verdict.number, 3), condition_of(symptom),
                               count_text(verdict.evidence), std::string(symptom.number),
                               std::string(symptom.alike), std::string(symptom.look_at)});
  }
  if (part.table.rows.empty()) return std::nullopt;
  return part;
}

}  // namespace

ReportSection draft_section(const ReportMetrics& metrics) {
  SectionBuilder section(metrics, "draft", "What the target accepted",
                         "The model of this trace drafts blocks for a target model. The target "
                         "keeps the longest beginning of each block that it would have chosen "
                         "itself. The figures show how much it keeps, when it keeps more, and "
                         "which block length would pay best.");
  section.add_from("draft", draft_means);
  section.add_from("draft", draft_lengths);
  section.add_from("draft", draft_positions);
  section.add_from("draft", draft_reasons);
  section.add_from("draft", draft_symptom_table);
  const MetricResult* result = metrics.find("draft");
  if (result == nullptr || result->find("speedup") != nullptr) {
    section.add_from("draft", draft_speedup);
  } else {
    section.note(
        "No speed-up is predicted, because the trace has no /draft/cost. A run without "
        "--no-draft-cost measures it.");
  }
  return section.take();
}

ReportSection decoding_section(const ReportMetrics& metrics) {
  SectionBuilder section(metrics, "decoding", "How it decoded",
                         "Tokens decided per step, the model's confidence in them, and the step "
                         "at which each position of a block got its final token.");
  section.add_from("decoding", decoding_means);
  section.add_from("decoding", decoding_over_steps);
  section.add_from("decoding", decoding_edits);
  section.add_from("decoding", settled_map);
  section.add_from("settling", settled_by_share);
  section.add_from("settling", settling_means);
  return section.take();
}

ReportSection methods_section(const ReportMetrics& metrics) {
  ReportSection section{"methods",
                        "How the numbers were made",
                        "Means are over denoising steps only, without prefill and commit passes. "
                        "They are weighted by their number of terms.",
                        {}};
  NumberTable table{{"metric", "definition", "source", "computed from", "left out"}, {}};
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

ReportSection own_section(const std::vector<MetricResult>& results) {
  ReportSection section{
      "own", "Own metrics", "Metrics that are not part of Blockscope, from Python plugins.", {}};
  for (const MetricResult& result : results) {
    std::vector<ReportFigure> figures = own_figures(result);
    for (ReportFigure& figure : figures) section.parts.emplace_back(std::move(figure));
    if (!figures.empty()) continue;
    ReportTable part;
    part.name = result.metric;
    part.title = result.title;
    part.caption = result.formula;
    part.table.header = {"array", "mean", "terms"};
    for (const ResultArray& array : result.arrays) {
      if (array.terms.empty()) continue;
      const ResultArray mean = mean_over_others(array, {});
      part.table.rows.push_back(
          {array.name, report_number(mean.values.front()), count_text(mean.terms.front())});
    }
    section.parts.emplace_back(std::move(part));
  }
  return section;
}

}  // namespace blockscope
