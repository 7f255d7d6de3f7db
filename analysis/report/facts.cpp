#include "analysis/report/facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "analysis/figures/terms.h"
#include "analysis/report/html.h"
#include "decode_record/interchange/imported_trajectory.h"

namespace blockscope {
namespace {

using nlohmann::json;

json parsed(const std::string& text) {
  json value = json::parse(text, nullptr, false);
  return value.is_object() ? value : json::object();
}

std::string text_of(const json& object, const char* key) {
  const auto at = object.find(key);
  if (at == object.end() || at->is_null()) return "";
  return at->is_string() ? at->get<std::string>() : at->dump();
}

/// Older traces don't say how many steps a block may take: a strategy may go on past its schedule.
std::string steps_text(const std::string& scheduled, const std::string& most) {
  if (scheduled.empty()) return "";
  if (most == scheduled) return fmt::format(", at most {} steps a block", most);
  const std::string text = fmt::format(", {} scheduled steps a block", scheduled);
  return most.empty() ? text : text + ", at most " + most;
}

/// On a canvas, the strategy's own temperatures, which fall, take the place of `temperature`.
std::string decoding_text(const json& run, const TraceMeta& meta) {
  const bool canvas = meta.noise_canvas;
  std::string text = meta.has_draft
                         ? std::string("rounds of a draft")
                         : text_of(run, "strategy") + steps_text(text_of(run, "denoising_steps"),
                                                                 text_of(run, "most_steps"));
  const std::string temperature = text_of(run, "temperature");
  if (canvas) {
    text += ", drawn at a falling temperature, from noise instead of masks";
  } else if (!temperature.empty()) {
    text += temperature == "0.0" ? ", greedy" : fmt::format(", temperature {}", temperature);
  }
  return text;
}

std::string state_text(const TraceInfo& info) {
  if (info.complete) return "";
  return info.partial ? " (unfinished: still being written, or cut off)" : " (cut off)";
}

std::string trace_list(const TraceGroup& traces) {
  constexpr std::size_t kNamed = 4;
  std::string text;
  for (std::size_t i = 0; i < std::min(traces.size(), kNamed); ++i) {
    const TraceInfo& info = traces.trace(i).info();
    text += (i == 0 ? "" : ", ") + std::filesystem::path(info.path).filename().string() +
            state_text(info);
  }
  if (traces.size() > kNamed) text += fmt::format(" and {} more", traces.size() - kNamed);
  return text;
}

struct HeadCount {
  std::int64_t steadier = 0, compared = 0;
};

HeadCount compare_heads(const ResultArray& external, const ResultArray& internal) {
  HeadCount count;
  for (std::size_t i = 0; i < external.values.size(); ++i) {
    if (!std::isfinite(external.values[i]) || !std::isfinite(internal.values[i])) continue;
    ++count.compared;
    if (external.values[i] > internal.values[i]) ++count.steadier;
  }
  return count;
}

std::string similarity_finding(const MetricResult& result) {
  const auto per_head = [&](const char* name) {
    return mean_over_others(result.array(name), {"layer", "head"});
  };
  const ResultArray external = per_head("similarity_external");
  const ResultArray internal = per_head("similarity_internal");
  const HeadCount count = compare_heads(external, internal);
  if (count.compared == 0) return "";
  const ResultArray out = mean_over_others(result.array("similarity_external"), {});
  const ResultArray in = mean_over_others(result.array("similarity_internal"), {});
  const bool shows = out.values.at(0) > in.values.at(0) && 2 * count.steadier > count.compared;
  return fmt::format(
      "{} A_out is steadier than A_in in {} of {} heads. The mean cosine of adjacent steps is {} "
      "for A_out, attention to the prefix, and {} for A_in, attention inside the block (n = {}).",
      shows ? "Attention to the prefix changes less than attention inside the block."
            : "FlashBlock\u2019s observation does not hold on this trace.",
      count.steadier, count.compared, report_number(out.values.at(0)),
      report_number(in.values.at(0)), count_text(total_terms(out)));
}

std::string mass_finding(const MetricResult& result) {
  const ResultArray heads = mean_over_others(result.array("external_mass"), {"layer", "head"});
  const ValueRange range = range_of(heads);
  if (range.empty()) return "";
  const ResultArray all = mean_over_others(result.array("external_mass"), {});
  return fmt::format(
      "On average, {:.0f} % of the attention goes to the prefix: {:.0f} % in the head with the "
      "least, {:.0f} % in the head with the most (n = {}).",
      100.0 * all.values.at(0), 100.0 * range.least, 100.0 * range.greatest,
      count_text(total_terms(all)));
}

std::string draft_finding(const MetricResult& result) {
  const ResultArray& means = result.array("means");
  if (!std::isfinite(means.values[0])) return "";
  std::string text = fmt::format(
      "A round adds {} tokens on average. The target accepts {:.0f} % of the drafted positions "
      "that it reaches (n = {} rounds).",
      report_number(means.values[0], 2), 100.0 * means.values[1], count_text(means.terms[0]));
  const ResultArray* speedup = result.find("speedup");
  if (speedup == nullptr || range_of(*speedup).empty()) return text;
  const auto best = std::ranges::max_element(speedup->values) - speedup->values.begin();
  if (best == 0) return text + " By prediction, no block length is faster than the target alone.";
  return text +
         fmt::format(" By prediction, blocks of {} give {} times the tokens/s of the target alone.",
                     speedup->axes[0].label(static_cast<std::size_t>(best)),
                     report_number(speedup->values[static_cast<std::size_t>(best)], 2));
}

}  // namespace

TraceCounts count_trace(const std::vector<std::vector<BlockSteps>>& blocks) {
  TraceCounts counts;
  for (const std::vector<BlockSteps>& of_trace : blocks) {
    std::set<std::int64_t> sequences;
    for (const BlockSteps& block : of_trace) {
      sequences.insert(block.sequence);
      counts.steps += static_cast<std::int64_t>(block.steps.size());
    }
    counts.blocks += static_cast<std::int64_t>(of_trace.size());
    counts.sequences += static_cast<std::int64_t>(sequences.size());
  }
  return counts;
}

namespace {

/// The name of a model in a trace's JSON; empty if it has none.
std::string requested_name(const json& model) {
  std::string name = text_of(model, "requested");
  while (name.size() > 1 && name.back() == '/') name.pop_back();
  const std::size_t slash = name.rfind('/');
  // Name a local folder by its last part. A hub id such as "JetLM/SDAR-1.7B" has one slash.
  if (name.starts_with('/') || name.starts_with('.')) name = name.substr(slash + 1);
  return name;
}

/// The other model of a drafted trace, with its label. Its name is empty if it is not known.
std::pair<std::string, std::string> partner(const json& model) {
  for (const auto& [member, label] : {std::pair("target", "Target"), std::pair("draft", "Draft")}) {
    if (!model.is_object() || !model.contains(member)) continue;
    return {label, requested_name(model[member])};
  }
  return {};
}

}  // namespace

std::string model_name(const TraceGroup& traces) {
  const std::string name = requested_name(parsed(traces.trace(0).info().meta.model_json));
  return name.empty() ? "a block-diffusion model" : name;
}

std::vector<std::pair<std::string, std::string>> run_facts(const TraceGroup& traces,
                                                           const TraceCounts& counts,
                                                           const std::string& backbone) {
  const TraceMeta& meta = traces.trace(0).info().meta;
  const json model = parsed(meta.model_json);
  const json run = parsed(meta.run_json);
  std::vector<std::pair<std::string, std::string>> facts;
  const std::string digest = text_of(model, "digest");
  const std::string shape =
      knows_model_shape(meta)
          ? fmt::format("{} layers, {} query heads, {}, head dimension {}{}{}", meta.num_layers,
                        meta.num_heads, meta.kv_heads_text(), meta.head_dim_text(),
                        meta.window_text().empty() ? "" : ", ", meta.window_text())
          : "its shape is not in the file that the trace was imported from";
  facts.emplace_back(
      "Model",
      fmt::format("{}{}: {}", model_name(traces),
                  digest.empty() ? "" : fmt::format(" (checkpoint {})", digest.substr(0, 12)),
                  shape));
  if (meta.has_draft) {
    if (const auto other = partner(model); !other.second.empty()) facts.push_back(other);
  }
  const std::string policy = text_of(run, "policy");
  facts.emplace_back("Attention",
                     policy.empty() ? "unknown policy" : fmt::format("policy {}", policy));
  facts.emplace_back(
      "Decoding",
      meta.continuous()
          ? fmt::format("continuous, blocks of {} tokens, {} of them in the arrays",
                        meta.block_tokens, meta.block_length)
          : fmt::format("block length {}, {}", meta.block_length, decoding_text(run, meta)));
  const std::string arrays =
      knows_model_shape(meta) ? fmt::format(", {} of {} layers, {} of {} heads", meta.layers.size(),
                                            meta.num_layers, meta.heads.size(), meta.num_heads)
                              : "";
  facts.emplace_back(
      "Recorded",
      fmt::format("{}, {}, {}; level {}{}", counted(counts.sequences, "sequence", "sequences"),
                  counted(counts.blocks, "block", "blocks"),
                  counted(counts.steps, "denoising step", "denoising steps"),
                  to_string(lowest_level(traces)), arrays));
  facts.emplace_back(traces.size() == 1 ? "Trace" : "Traces", trace_list(traces));
  if (!backbone.empty()) {
    const TraceGroup other({backbone});
    facts.emplace_back("Backbone",
                       fmt::format("{}, trace {}", model_name(other), trace_list(other)));
  }
  const std::string version = text_of(run, "version");
  if (!version.empty()) facts.emplace_back("Captured with", fmt::format("blockscope {}", version));
  return facts;
}

std::vector<std::string> find_findings(const ReportMetrics& metrics) {
  std::vector<std::string> findings;
  const auto add = [&](const char* name, std::string (*sentence)(const MetricResult&)) {
    const MetricResult* result = metrics.find(name);
    if (result == nullptr) return;
    std::string text = sentence(*result);
    if (!text.empty()) findings.push_back(std::move(text));
  };
  add("draft", draft_finding);
  add("similarity", similarity_finding);
  add("external_mass", mass_finding);
  return findings;
}

}  // namespace blockscope
