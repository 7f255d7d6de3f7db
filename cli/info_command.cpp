// `blockscope info`: what a trace holds, as a table or JSON. Similarities are means by layer over
// heads, block positions and denoising steps, with their number of terms.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "analysis/metrics/available_metrics.h"
#include "analysis/metrics/metrics.h"
#include "cli/commands.h"
#include "cli/followed_answers.h"
#include "command_line/options.h"
#include "command_line/printable.h"
#include "decode_record/base/error.h"
#include "decode_record/base/text.h"
#include "decode_record/interchange/imported_trajectory.h"
#include "decode_record/json/json_text.h"
#include "decode_record/read/trace_inventory.h"
#include "decode_record/read/trace_reader.h"

namespace blockscope {
namespace {

using nlohmann::ordered_json;

constexpr std::int64_t kRowsAtATime = 1024;
constexpr std::int64_t kSequencesAtATime = 256;

struct Mean {
  double sum = 0.0;
  double weight = 0.0;  // number of terms: heads * valid positions
  void add(double value, double terms) {
    sum += value * terms;
    weight += terms;
  }
};

/// Metrics of analysis/ that the recorder's summaries give, and the names of their arrays.
struct SummaryMean {
  const char* metric;
  const char* array;
};
constexpr std::array<SummaryMean, 3> kSummaries{{{"similarity", "similarity_external"},
                                                 {"similarity", "similarity_internal"},
                                                 {"external_mass", "external_mass"}}};

struct LayerMeans {
  std::int64_t layer = 0;
  std::array<Mean, kSummaries.size()> means;
};

/// Sequences that a kill cut and a resume decoded again. The rest of the summary leaves them out.
struct Aborted {
  std::int64_t sequences = 0;
  std::int64_t rows = 0;
  std::int64_t tokens = 0;
};

struct Summary {
  Aborted aborted;
  std::int64_t sequences = 0;
  std::array<std::int64_t, 3> rows_by_kind{};
  std::int64_t denoise_without_prefix = 0;  // N = 0: left out of the means
  std::int64_t decided = 0;                 // tokens decided
  std::int64_t pass_time_ns = 0;            // summed over rows; a batch's pass counts once per row
  std::int64_t taken_back = 0;              // tokens that became undecided again
  std::int64_t edited = 0;                  // tokens that another one replaced
  std::int64_t inserted = 0;                // positions
  std::int64_t deleted = 0;
  std::int64_t computed = 0;  // positions, over all layers and denoising rows
  std::int64_t canvases = 0;  // the same, without any cache (has_cache)
  std::int64_t blocks = 0;    // distinct (sequence, block)
  Mean score;                 // over scored sequences that were not aborted
  std::vector<LayerMeans> layers;
};

/// Tokens per round of drafted decoding, without tokens after the answer's end.
double tokens_per_round(const Summary& summary) {
  const auto rounds = static_cast<double>(std::max<std::int64_t>(summary.rows_by_kind[1], 1));
  return static_cast<double>(summary.decided) / rounds + 1.0;
}

/// Means over heads, positions and denoising steps with a prefix, without a block's first step.
ResultArray layer_means(const MetricResult& result, const char* name) {
  const ResultArray& array = result.array(name);
  std::vector<double> later = array.axes.at(array.axis("step")).index;
  // A similarity compares a step with the next one. The mass exists at step 1 too: drop it.
  if (result.metric == "external_mass") std::erase(later, 1.0);
  return mean_over_others(select(array, "step", later), {"layer"});
}

/// Fills Summary::layers. What the trace can't give has no terms (a level without summaries, a
/// policy whose values are not exact).
void add_means(const std::string& path, Summary& summary) {
  const TraceGroup trace({path});
  MetricOptions options;
  options.from_summary = true;
  const MetricChoice choice = available_metrics(trace, options);
  std::vector<std::unique_ptr<StepMetric>> metrics;
  for (const MetricInfo* info : choice.metrics) {
    const auto wanted = [&](const SummaryMean& mean) { return info->name == mean.metric; };
    if (std::ranges::any_of(kSummaries, wanted)) metrics.push_back(info->make(options));
  }
  if (metrics.empty()) return;
  for (const MetricResult& result : run_pass(trace, metrics)) {
    for (std::size_t i = 0; i < kSummaries.size(); ++i) {
      if (result.metric != kSummaries[i].metric) continue;
      const ResultArray means = layer_means(result, kSummaries[i].array);
      for (std::size_t layer = 0; layer < summary.layers.size(); ++layer) {
        if (means.terms[layer] == 0) continue;
        summary.layers[layer].means[i].add(means.values[layer],
                                           static_cast<double>(means.terms[layer]));
      }
    }
  }
}

bool denoises(const StepColumns& steps, std::size_t i) {
  return static_cast<PassKind>(steps.kind[i]) == PassKind::denoise;
}

/// Adds the positions that a row computed over all layers, and those that a whole pass computes.
void add_computed(const TraceReader& reader, std::int64_t row, std::int64_t length,
                  Summary& summary) {
  for (const LayerRanges& layer : reader.cache(row)) {
    for (const PositionRange& range : layer.query) summary.computed += range.stop - range.start;
    summary.canvases += length;
  }
}

std::int64_t positions_of(const TraceReader& reader, std::int64_t sequence) {
  const SequenceInfo info = reader.sequence(sequence);
  return static_cast<std::int64_t>(info.prompt.size()) + info.gen_length;
}

Summary summarise(const TraceReader& reader) {
  const TraceInfo& info = reader.info();
  Summary summary;
  for (const std::int64_t layer : info.meta.layers) summary.layers.push_back({layer, {}});
  std::vector<std::int64_t> last_block(static_cast<std::size_t>(info.num_sequences), -1);
  std::vector<std::int64_t> lengths(last_block.size(), -1);  // of canvases
  FollowedAnswers followed(reader);
  const std::vector<std::uint8_t> aborted = reader.aborted();
  summary.aborted.sequences = info.num_sequences - std::ranges::count(aborted, 0);
  summary.sequences = info.num_sequences - summary.aborted.sequences;
  for (std::int64_t first = 0; first < info.num_rows; first += kRowsAtATime) {
    const auto steps = reader.steps(first, std::min(kRowsAtATime, info.num_rows - first));
    for (std::size_t i = 0; i < static_cast<std::size_t>(steps.count); ++i) {
      const auto sequence = static_cast<std::size_t>(steps.sequence[i]);
      const bool real = aborted.at(sequence) == 0;
      const StepChanges changes = followed.step(first, steps, i);
      const std::int64_t tokens = changes.net_tokens;
      if (!real) {
        summary.aborted.rows += 1;
        summary.aborted.tokens += denoises(steps, i) ? tokens : 0;
        continue;
      }
      summary.rows_by_kind.at(steps.kind[i]) += 1;
      summary.pass_time_ns += steps.pass_time_ns[i];
      if (!denoises(steps, i)) continue;
      if (steps.context_length[i] == 0) summary.denoise_without_prefix += 1;
      if (last_block.at(sequence) != steps.block[i]) summary.blocks += 1;
      last_block.at(sequence) = steps.block[i];
      summary.decided += tokens;
      const std::int64_t row = first + static_cast<std::int64_t>(i);
      summary.taken_back +=
          info.meta.has_revocations ? std::ssize(reader.revoked(row)) : changes.taken_back;
      summary.edited += changes.edited;
      summary.inserted += changes.inserted;
      summary.deleted += changes.deleted;
      if (!info.meta.has_cache) continue;
      std::int64_t& length = lengths.at(sequence);
      if (length < 0) length = positions_of(reader, steps.sequence[i]);
      add_computed(reader, row, length, summary);
    }
  }
  add_means(info.path, summary);
  for (std::int64_t first = 0; first < info.num_sequences; first += kSequencesAtATime) {
    const std::int64_t count = std::min(kSequencesAtATime, info.num_sequences - first);
    for (const SequenceInfo& sequence : reader.sequences(first, count)) {
      if (sequence.aborted || std::isnan(sequence.score)) continue;
      summary.score.add(static_cast<double>(sequence.score), 1.0);
    }
  }
  return summary;
}

/// Share of the positions of whole passes that was not computed.
double share_saved(const Summary& summary) {
  return summary.canvases == 0
             ? 0.0
             : 1.0 - static_cast<double>(summary.computed) / static_cast<double>(summary.canvases);
}

double tokens_per_step(const Summary& summary) {
  const std::int64_t steps = summary.rows_by_kind[1];
  return steps == 0 ? 0.0 : static_cast<double>(summary.decided) / static_cast<double>(steps);
}

std::int64_t real_rows(const Summary& summary) {
  return summary.rows_by_kind[0] + summary.rows_by_kind[1] + summary.rows_by_kind[2];
}

/// Rows of the traces that `repack --repair` made this trace from; 0: nothing was lost.
std::int64_t rows_before_repair(const TraceInfo& info) {
  const auto run = ordered_json::parse(info.meta.run_json, nullptr, false);
  const ordered_json none = ordered_json::object();
  const auto member = [&](const ordered_json& from, const char* key) {
    return from.is_object() && from.contains(key) ? from[key] : none;
  };
  std::int64_t rows = 0;
  bool lost = false;
  for (const ordered_json& input : member(member(run, "repacked"), "inputs")) {
    const ordered_json before = member(member(input, "lost"), "committed_rows");
    lost = lost || before.is_number_integer();
    const ordered_json kept = before.is_number_integer() ? before : member(input, "rows");
    if (kept.is_number_integer()) rows += kept.get<std::int64_t>();
  }
  return lost ? rows : 0;
}

std::string state_of(const TraceInfo& info) {
  if (info.complete) return "complete";
  if (const std::int64_t rows = rows_before_repair(info); rows > 0 && !info.partial) {
    return fmt::format("repaired: {} of {} could be kept", info.num_rows, plural(rows, "row"));
  }
  return info.partial ? "unfinished: still written, or cut off"
                      : "cut off: every committed row is here";
}

ordered_json mean_json(const Mean& mean) {
  if (mean.weight == 0.0) return {{"mean", nullptr}, {"terms", 0}};
  return {{"mean", mean.sum / mean.weight}, {"terms", static_cast<std::int64_t>(mean.weight)}};
}

ordered_json to_json(const TraceInfo& info, const Summary& summary,
                     const std::vector<DatasetInfo>& datasets) {
  ordered_json root;
  root["path"] = info.path;
  root["format_version"] = info.format_version;
  root["complete"] = info.complete;
  root["partial"] = info.partial;
  root["file_bytes"] = info.file_bytes;
  root["level"] = std::string(to_string(info.meta.level));
  root["block_length"] = info.meta.block_length;
  root["mask_token_id"] = info.meta.mask_token_id;
  if (info.meta.continuous()) root["block_tokens"] = info.meta.block_tokens;
  root["sequences"] = summary.sequences;
  root["blocks"] = summary.blocks;
  root["rows"] = {{"committed", real_rows(summary)},
                  {"prefill", summary.rows_by_kind[0]},
                  {"denoise", summary.rows_by_kind[1]},
                  {"commit", summary.rows_by_kind[2]},
                  {"denoise_without_prefix", summary.denoise_without_prefix}};
  root["aborted"] = {{"sequences", summary.aborted.sequences},
                     {"rows", summary.aborted.rows},
                     {"tokens", summary.aborted.tokens}};
  root["tokens_decided"] = summary.decided;
  root["tokens_per_step"] = tokens_per_step(summary);
  if (info.meta.has_draft) root["tokens_per_round"] = tokens_per_round(summary);
  if (info.meta.has_revocations || summary.taken_back > 0) {
    root["tokens_taken_back"] = summary.taken_back;
  }
  if (summary.edited > 0) root["tokens_edited"] = summary.edited;
  if (summary.inserted + summary.deleted > 0) {
    root["positions_inserted"] = summary.inserted;
    root["positions_deleted"] = summary.deleted;
  }
  if (info.meta.has_cache) {
    root["cache"] = {{"positions_computed", summary.computed},
                     {"positions_of_whole_passes", summary.canvases},
                     {"saved", share_saved(summary)}};
  }
  root["score"] = mean_json(summary.score);
  root["recorded_layers"] = info.meta.layers;
  root["recorded_heads"] = info.meta.heads;
  root["layers"] = ordered_json::array();
  for (const LayerMeans& layer : summary.layers) {
    ordered_json item = {{"layer", layer.layer}};
    for (std::size_t i = 0; i < kSummaries.size(); ++i) {
      item[kSummaries[i].array] = mean_json(layer.means[i]);
    }
    root["layers"].push_back(item);
  }
  root["datasets"] = ordered_json::array();
  for (const DatasetInfo& dataset : datasets) {
    root["datasets"].push_back({{"path", dataset.path},
                                {"type", dataset.type},
                                {"axes", dataset.axes},
                                {"shape", dataset.shape},
                                {"bytes", dataset.bytes},
                                {"stored_bytes", dataset.stored_bytes},
                                {"compressed", dataset.compressed}});
  }
  root["model"] = ordered_json::parse(info.meta.model_json);
  root["run"] = ordered_json::parse(info.meta.run_json);
  return root;
}

std::string mebibytes(std::int64_t bytes) {
  return fmt::format("{:.2f} MiB", static_cast<double>(bytes) / (1024.0 * 1024.0));
}

void print_layers(const Summary& summary) {
  const bool any = std::ranges::any_of(
      summary.layers, [](const LayerMeans& layer) { return layer.means[0].weight > 0.0; });
  if (!any) return;
  fmt::print("\nmeans over denoising steps after a block's first, with a prefix\n");
  fmt::print("{:>6} {:>14} {:>14} {:>14} {:>12}\n", "layer", "sim A_out", "sim A_in",
             "external mass", "terms");
  for (const LayerMeans& layer : summary.layers) {
    fmt::print("{:>6}", layer.layer);
    for (const Mean& mean : layer.means) {
      fmt::print(" {:>14}", mean.weight == 0.0 ? std::string("-")
                                               : fmt::format("{:.4f}", mean.sum / mean.weight));
    }
    fmt::print(" {:>12}\n", static_cast<std::int64_t>(layer.means[0].weight));
  }
}

void print_table(const TraceInfo& info, const Summary& summary) {
  const TraceMeta& meta = info.meta;
  const auto line = [](const char* name, const std::string& value) {
    fmt::print("{:<16} {}\n", name, printable(value));
  };
  line("trace", fmt::format("{} (schema {}, {})", info.path, info.format_version,
                            mebibytes(info.file_bytes)));
  line("state", state_of(info));
  const std::string shape =
      knows_model_shape(meta)
          ? fmt::format("{}, {}, {}, head_dim {}", plural(meta.num_layers, "layer"),
                        plural(meta.num_heads, "query head"), meta.kv_heads_text(),
                        meta.head_dim_text())
          : "shape unknown: not in the imported file";
  if (meta.continuous()) {
    line("model", shape);
    line("tokens", "none: the model is continuous");
    line("block length",
         fmt::format("{} tokens, {} of them in the arrays", meta.block_tokens, meta.block_length));
  } else {
    line("model", fmt::format("{}, vocabulary {}", shape, meta.vocab_size));
    line("mask token", meta.noise_canvas        ? "none: undecided positions hold noise"
                       : meta.mask_token_id < 0 ? "none"
                                                : std::to_string(meta.mask_token_id));
    line("block length", std::to_string(meta.block_length));
  }
  if (!meta.window_text().empty()) line("windows", meta.window_text());
  line("level", fmt::format("{}, {}, {}", to_string(meta.level),
                            plural(static_cast<std::int64_t>(meta.layers.size()), "layer"),
                            plural(static_cast<std::int64_t>(meta.heads.size()), "head")));
  line("sequences", fmt::format("{}, {}", summary.sequences, plural(summary.blocks, "block")));
  line("rows", fmt::format("{} committed: {} prefill, {} denoise ({} without a prefix), {} commit",
                           real_rows(summary), summary.rows_by_kind[0], summary.rows_by_kind[1],
                           summary.denoise_without_prefix, summary.rows_by_kind[2]));
  if (!meta.continuous()) {
    line("tokens", fmt::format("{} decided, {:.2f} a denoising step", summary.decided,
                               tokens_per_step(summary)));
  }
  // The draft's passes decide what the target accepts. Each round adds the target's own token.
  if (meta.has_draft) {
    line("drafts",
         fmt::format("{}, {:.2f} tokens a round with the target's own",
                     plural(summary.rows_by_kind[1], "round"), tokens_per_round(summary)));
  }
  if (meta.has_revocations || summary.taken_back > 0) {
    line("taken back", plural(summary.taken_back, "token"));
  }
  if (summary.edited > 0) line("edited", plural(summary.edited, "token"));
  if (summary.inserted + summary.deleted > 0) {
    line("moved", fmt::format("{} inserted, {} deleted", plural(summary.inserted, "position"),
                              summary.deleted));
  }
  if (meta.has_cache) {
    line("cache", fmt::format("{:.1f} % of a whole pass saved: {} of {} computed, all layers",
                              100.0 * share_saved(summary), summary.computed,
                              plural(summary.canvases, "position")));
  }
  const Aborted& aborted = summary.aborted;
  if (aborted.sequences > 0) {
    line("left out", fmt::format("{} ({}, {})", plural(aborted.sequences, "aborted sequence"),
                                 plural(aborted.rows, "row"), plural(aborted.tokens, "token")));
  }
  if (summary.score.weight > 0.0) {
    line("score",
         fmt::format("{:.3f}, mean of {}", summary.score.sum / summary.score.weight,
                     plural(static_cast<std::int64_t>(summary.score.weight), "scored sequence")));
  }
  print_layers(summary);
}

void print_datasets(const std::vector<DatasetInfo>& datasets) {
  fmt::print("\n{:<32} {:<5} {:<28} {:>12} {:>12}\n", "dataset", "type", "shape", "bytes",
             "in the file");
  for (const DatasetInfo& dataset : datasets) {
    fmt::print("{:<32} {:<5} {:<28} {:>12} {:>12}{}\n", dataset.path, dataset.type,
               fmt::format("[{}]", fmt::join(dataset.shape, ", ")), dataset.bytes,
               dataset.stored_bytes, dataset.compressed ? " deflated" : "");
  }
}

void run_info(const std::string& path, bool json, bool with_datasets) {
  const TraceReader reader(path);
  const Summary summary = summarise(reader);
  const auto datasets = list_datasets(reader.info().path);
  if (json) {
    fmt::print("{}\n", json_text(to_json(reader.info(), summary, datasets), 2));
  } else {
    print_table(reader.info(), summary);
    if (with_datasets) print_datasets(datasets);
  }
}

}  // namespace

void add_info_command(CLI::App& app) {
  auto* command = app.add_subcommand("info", "Show what a trace holds");
  auto path = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  command->add_option("trace", *path, "Trace file, finished or .partial")->required();
  auto datasets = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print one JSON object");
  command->add_flag("--datasets", *datasets, "Also list every dataset with its shape and size");
  command->footer("Example: blockscope info run.h5");
  command->callback([path, json, datasets, command] {
    refuse_idle_beside(*command, "--datasets", "--json");
    run_info(*path, *json, *datasets);
  });
}

}  // namespace blockscope
