#include "cli/diff_teacher.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <vector>

#include "analysis/metrics/teacher_comparison.h"
#include "analysis/results/text_table.h"
#include "command_line/options.h"
#include "command_line/pass_progress.h"
#include "command_line/printable.h"
#include "command_line/text_output.h"
#include "decode_record/base/text.h"

namespace blockscope {
namespace {

constexpr std::size_t kShownLayers = 16;

std::string size_text(double value) { return value == 0.0 ? "0" : fmt::format("{:.2g}", value); }

void print_quantities(const TeacherComparison& found) {
  TextTable table({"quantity", "elements", "different", "largest |a-b|", "of the range", "first"});
  for (const TeacherResult& result : found.results) {
    if (!result.missing.empty()) continue;
    const bool counts_sets =
        result.quantity == TeacherQuantity::expert || result.quantity == TeacherQuantity::token;
    std::string first = "-";
    if (result.first) {
      const TeacherPlace& place = result.first->place;
      first = fmt::format("row {}", place.row_a);
      if (place.layer >= 0) first += fmt::format(", layer {}", place.layer);
      first += fmt::format(", position {}", place.position);
      if (place.head >= 0) first += fmt::format(", head {}", place.head);
    }
    table.add_row({std::string(entry_of(result.quantity).label),
                   std::to_string(result.all.elements), std::to_string(result.all.different),
                   counts_sets ? "-" : size_text(result.all.largest),
                   counts_sets ? "-" : size_text(result.all.largest_relative), first});
  }
  fmt::print("{}", table.text());
}

/// Which layers a table lists: some, and the one with the first difference.
std::vector<std::size_t> listed_layers(const TeacherComparison& found, bool all) {
  const std::size_t count = found.layers.size();
  std::vector<std::size_t> layers = spread(count, all ? count : kShownLayers);
  const TeacherResult* first = found.first();
  if (first == nullptr || first->first->place.layer < 0) return layers;
  for (std::size_t i = 0; i < count; ++i) {
    if (found.layers[i] == first->first->place.layer) layers.push_back(i);
  }
  std::ranges::sort(layers);
  const auto [from, to] = std::ranges::unique(layers);
  layers.erase(from, to);
  return layers;
}

void print_layers(const TeacherComparison& found, bool all) {
  if (found.layers.empty() || found.recorded_rows == 0) return;
  std::vector<std::string> header{"layer"};
  std::vector<const TeacherResult*> shown;
  for (const TeacherResult& result : found.results) {
    if (result.by_layer.empty()) continue;
    header.emplace_back(entry_of(result.quantity).label);
    shown.push_back(&result);
  }
  TextTable table(header);
  const std::vector<std::size_t> layers = listed_layers(found, all);
  for (const std::size_t layer : layers) {
    std::vector<std::string> cells{std::to_string(found.layers[layer])};
    for (const TeacherResult* result : shown) {
      const TeacherCounts& counts = result->by_layer[layer];
      if (counts.elements == 0) {
        cells.emplace_back("- ");
      } else if (result->quantity == TeacherQuantity::expert) {
        const double share =
            static_cast<double>(counts.different) / static_cast<double>(counts.elements);
        cells.push_back(fmt::format("{:.2f} %{}", 100.0 * share, counts.different > 0 ? "*" : " "));
      } else {
        cells.push_back(size_text(counts.largest_relative) + (counts.different > 0 ? "*" : " "));
      }
    }
    table.add_row(std::move(cells));
  }
  fmt::print(
      "\nLargest difference by layer as a share of the range; of experts, the tokens whose "
      "sets differ. *: beyond the tolerance.\n{}",
      table.text());
  if (layers.size() < found.layers.size()) {
    fmt::print("{} of {} layers. HINT: --all lists them\n", layers.size(), found.layers.size());
  }
}

void print_experts(const TeacherComparison& found, bool all) {
  ExpertGaps total;
  for (const ExpertGaps& gaps : found.experts) total.add(gaps);
  if (total.different == 0) return;
  std::vector<std::string> header{"layer", "tokens", "differ", "share"};
  for (const double end : kTieGaps) header.push_back(fmt::format("gap to {:g}", end));
  header.emplace_back("larger");
  header.emplace_back("unknown");
  TextTable table(header);
  const auto add = [&](const std::string& name, const ExpertGaps& gaps) {
    std::vector<std::string> cells{name, std::to_string(gaps.tokens),
                                   std::to_string(gaps.different)};
    cells.push_back(fmt::format("{:.2f} %", 100.0 * static_cast<double>(gaps.different) /
                                                static_cast<double>(gaps.tokens)));
    for (const std::int64_t count : gaps.gaps) cells.push_back(std::to_string(count));
    cells.push_back(std::to_string(gaps.unknown));
    table.add_row(std::move(cells));
  };
  for (const std::size_t i : listed_layers(found, all)) {
    if (found.experts[i].different > 0) add(std::to_string(found.layers[i]), found.experts[i]);
  }
  table.add_rule();
  add("all", total);
  fmt::print(
      "\nTokens whose expert sets differ, by how near a tie they were. The gap is the "
      "difference of the swapped\nexperts' weights, as far as both traces hold them, "
      "relative to the larger one.\n{}",
      table.text());
}

void print_verdict(const TeacherComparison& found) {
  std::vector<std::string_view> in_neither;
  for (const TeacherResult& result : found.results) {
    const std::string_view label = entry_of(result.quantity).label;
    if (result.missing.starts_with("neither")) {
      in_neither.push_back(label);
    } else if (!result.missing.empty()) {
      fmt::print("not compared: {}: {}\n", label, result.missing);
    }
  }
  if (!in_neither.empty()) {
    fmt::print("not compared, because neither trace has them: {}\n", fmt::join(in_neither, ", "));
  }
  for (const std::string& note : found.notes) fmt::print("{}\n", note);
  const TeacherResult* first = found.first();
  if (first != nullptr) {
    const TeacherQuantityEntry& entry = entry_of(first->quantity);
    fmt::print("first difference: {} in {}: {}\nlook at: {}\n", entry.label,
               place_text(first->first->place), values_text(*first), entry.look_at);
  }
  if (found.inputs) {
    fmt::print(
        "the inputs differ in {}: {}; nothing after it was compared. HINT: blockscope "
        "capture ... --replay {} gives both the same tokens\n",
        place_text(found.inputs->place), found.inputs->what, printable(found.path_a));
  }
  if (found.equal()) fmt::print("no difference beyond the tolerance\n");
}

}  // namespace

void add_teacher_options(CLI::App& command, TeacherFlags& flags) {
  command
      .add_option("--range-tol", flags.tolerance,
                  "Treat values as equal up to this share of their range (default: by their type)")
      ->check(real_number(0.0, kAnyReal));
  command.add_option("--json", flags.json, "Write the comparison as JSON (-: standard output)");
  command.add_option("--csv", flags.csv,
                     "Write a line per quantity and layer (-: standard output)");
  command.add_flag("--force", flags.force, "Replace existing outputs");
}

bool run_teacher(const std::string& a, const std::string& b, const TeacherFlags& flags, bool all) {
  const InterruptGuard guard;
  CommandFiles files;
  files.reads_trace(a);
  files.reads_trace(b);
  std::vector<std::pair<TextOutput, std::string (*)(const TeacherComparison&)>> outputs;
  bool shown = true;
  const auto open = [&](const std::string& path, std::string (*text)(const TeacherComparison&)) {
    if (path.empty()) return;
    outputs.emplace_back(TextOutput(files, path, flags.force), text);
    shown = shown && !outputs.back().first.is_standard_output();
  };
  open(flags.json, &teacher_json);
  open(flags.csv, &teacher_csv);
  PassProgress progress(false, 0);
  TeacherOptions options;
  options.tolerance = flags.tolerance;
  options.progress = progress.callback();
  const TeacherComparison found = compare_teacher(a, b, options);
  InterruptGuard::check();
  progress.finish();
  for (auto& [output, text] : outputs) output.write(text(found));
  for (auto& [output, text] : outputs) output.commit();
  if (!shown) return found.equal();
  fmt::print("A: {}\nB: {}\n{} of {} at the same tokens, {} with arrays; {}, {}\n",
             printable(found.path_a), printable(found.path_b), plural(found.rows, "step"),
             plural(found.sequences, "sequence"), found.recorded_rows,
             plural(static_cast<std::int64_t>(found.layers.size()), "layer"),
             plural(static_cast<std::int64_t>(found.heads.size()), "head"));
  fmt::print("tolerance: {:g} of a value's range ({})\n\n", found.tolerance,
             found.tolerance_reason);
  print_quantities(found);
  print_layers(found, all);
  print_experts(found, all);
  fmt::print("\n");
  print_verdict(found);
  return found.equal();
}

}  // namespace blockscope
